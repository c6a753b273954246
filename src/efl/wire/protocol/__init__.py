"""What server and clients say to each other: every request and reply, its bytes, and what is checked about it.

This is the one place where messages are made and read. Reading one checks everything that can be known without the
payloads: types, ranges, lengths, which parts go together. Payloads stay encoded; `efl.wire.decode` checks them in turn.
Anything else is a `WireError`.

| request | reply |
|---|---|
| `TrainRequest` | `TrainReply` |
| `EvaluateRequest` | `EvaluateReply` |
| `SaveStateRequest`, `RestoreStateRequest` | `StateReply` |
"""

from typing import get_args

from efl.wire.limits import Limits
from efl.wire.message import Message
from efl.wire.protocol.evaluate import EvaluateReply, EvaluateRequest
from efl.wire.protocol.state import RestoreStateRequest, SaveStateRequest, StateReply
from efl.wire.protocol.train import NO_ROUND, TrainReply, TrainRequest

__all__ = [
    "NO_ROUND",
    "EvaluateReply",
    "EvaluateRequest",
    "Reply",
    "Request",
    "RestoreStateRequest",
    "SaveStateRequest",
    "StateReply",
    "TrainReply",
    "TrainRequest",
    "decode_request",
]

Request = TrainRequest | EvaluateRequest | SaveStateRequest | RestoreStateRequest
Reply = TrainReply | EvaluateReply | StateReply
_REQUESTS: dict[str, type[Request]] = {kind.KIND: kind for kind in get_args(Request)}


def decode_request(blob: bytes, limits: Limits) -> Request:
    """Read a request of any type.

    Args:
        blob: Bytes that may be anything.
        limits: The largest message that is taken.

    Returns:
        The request, checked.

    Raises:
        WireError: ``blob`` is anything else.

    Example:
        >>> decode_request(RestoreStateRequest(12).to_bytes(), Limits())
        RestoreStateRequest(round=12)
    """
    message = Message.from_bytes(blob, _REQUESTS, limits)
    return _REQUESTS[message.kind].from_envelope(message)
