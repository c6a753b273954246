"""The same algorithms over a real network, on Flower: a ServerApp and a ClientApp around your model and your data.

`server_app` runs the coordinator that `efl run` has, `client_app` answers with the client function that it has, and the
same bytes travel. docs/deploy.md goes through it step by step, `efl deploy init DIR` writes an app to start from.
"""

from efl.flower.client import client_app
from efl.flower.server import server_app

__all__ = ["client_app", "server_app"]
