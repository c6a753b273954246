"""The same algorithms over a real network, on Flower: a ServerApp and a ClientApp around your model and your data.

`server_app` runs the coordinator that `efl run` has, `client_app` answers with the client function that it has, and the
same bytes travel. docs/deploy.md goes through it step by step, `efl deploy init DIR` writes an app to start from.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from efl.flower.client import client_app
    from efl.flower.server import server_app

__all__ = ["client_app", "server_app"]

# Imported when first used: Flower starts a client anew for every message, and what it does not need costs time.
_WHERE = {"client_app": "efl.flower.client", "server_app": "efl.flower.server"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
