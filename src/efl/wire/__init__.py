"""What travels: payloads, their bytes, messages, and the ledger that counts them.

Knows nothing of models or algorithms: vectors in, bytes out, and back.
"""

from efl.layout import Layout
from efl.wire.catchup import FIRST, NO_MODEL, BroadcastLog, CatchUp, ModelUpdate, received
from efl.wire.context import Context
from efl.wire.ledger import KINDS, Ledger, kinds_of
from efl.wire.limits import Limits
from efl.wire.message import PERSONAL, Message
from efl.wire.payloads import (
    Dense,
    Field,
    Lattice,
    OnSupport,
    Payload,
    Quantised,
    Signs,
    Ternary,
    decode,
    encode,
    register,
)
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
from efl.wire.rank_one import RankOneFisher

__all__ = [
    "FIRST",
    "KINDS",
    "NO_MODEL",
    "PERSONAL",
    "BroadcastLog",
    "CatchUp",
    "Context",
    "Dense",
    "EvaluateReply",
    "EvaluateRequest",
    "Field",
    "Lattice",
    "Layout",
    "Ledger",
    "Limits",
    "Message",
    "ModelUpdate",
    "OnSupport",
    "Payload",
    "Quantised",
    "RankOneFisher",
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
    "register",
]
