"""What travels: payloads, their bytes, messages, and the ledger that counts them.

Knows nothing of models or algorithms: vectors in, bytes out, and back.
"""

from efl.layout import Layout
from efl.wire.catchup import FIRST, NO_MODEL, BroadcastLog, Courier, received
from efl.wire.context import Context
from efl.wire.everywhere import Quantised, Signs
from efl.wire.ledger import Ledger, kinds_of
from efl.wire.limits import Limits
from efl.wire.message import PERSONAL, Message
from efl.wire.payload import Dense, Field, Payload, Ternary, decode, encode
from efl.wire.protocol import (
    EvaluateReply,
    EvaluateRequest,
    RestoreStateRequest,
    SaveStateRequest,
    StateReply,
    TrainReply,
    TrainRequest,
    decode_request,
)
from efl.wire.rank_one import RankOne

__all__ = [
    "FIRST",
    "NO_MODEL",
    "PERSONAL",
    "BroadcastLog",
    "Context",
    "Courier",
    "Dense",
    "EvaluateReply",
    "EvaluateRequest",
    "Field",
    "Layout",
    "Ledger",
    "Limits",
    "Message",
    "Payload",
    "Quantised",
    "RankOne",
    "RestoreStateRequest",
    "SaveStateRequest",
    "Signs",
    "StateReply",
    "Ternary",
    "TrainReply",
    "TrainRequest",
    "decode",
    "decode_request",
    "encode",
    "kinds_of",
    "received",
]
