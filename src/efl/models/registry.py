"""The networks known by name. A module of this package registers its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from efl.models.input_spec import Task
from efl.plugins import Registry, returns

Builder = Callable[[Task], nn.Module]


def _is_network(thing: Any) -> bool:
    made = thing if isinstance(thing, type) else returns(thing)
    return made is not None and issubclass(made, nn.Module)


NETWORKS: Registry[Builder] = Registry(
    "model", lambda thing: thing if callable(thing) else None, _is_network, built_in="efl.models"
)
"""The networks known by name."""
