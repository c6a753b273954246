"""Ways between the coordinator and its clients. All carry the same bytes, so all give the same model."""

from efl.engine.transport.local import LocalTransport
from efl.engine.transport.protocol import Exchange, Transport

__all__ = ["Exchange", "LocalTransport", "Transport"]
