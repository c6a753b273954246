"""What travels: payloads, their bytes, messages, and the ledger that counts them.

Knows nothing of models or algorithms: vectors in, bytes out, and back.
"""

from efl.wire.catchup import BroadcastLog
from efl.wire.ledger import Ledger
from efl.wire.message import Message
from efl.wire.payload import Dense, Field, Payload, Ternary, decode, encode

__all__ = ["BroadcastLog", "Dense", "Field", "Ledger", "Message", "Payload", "Ternary", "decode", "encode"]
