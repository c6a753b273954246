"""A message: a small header, named payloads, and for requests the broadcasts the client has missed.

One blob: an envelope in MessagePack (version, kind, header, lengths) with a CRC-32, then the payloads, each with a
CRC-32 of its own that is checked when it is decoded. So what many clients are sent alike is encoded, and checked,
once. A CRC catches damage, not forgery.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgpack

from efl.errors import WireError
from efl.wire.reader import CHECKSUM, Reader, opened, sealed

VERSION = 3
PERSONAL = "personal"  # the part of a request that is for one client alone
Kind = Literal["request", "reply"]
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Message:
    """``parts`` and ``log`` hold encoded payloads.

    >>> Message.from_bytes(Message("reply", {"round": 3}).to_bytes(), "reply").header
    {'round': 3}
    """

    kind: Kind
    header: Mapping[str, Any]
    parts: Mapping[str, bytes] = field(default_factory=dict)
    log: Sequence[bytes] = ()

    def to_bytes(self) -> bytes:
        """The blob that travels."""
        lengths = [[[name, len(blob)] for name, blob in self.parts.items()], [len(blob) for blob in self.log]]
        envelope: bytes = msgpack.packb([VERSION, self.kind, dict(self.header), *lengths])
        return b"".join([_LENGTH.pack(len(envelope)), sealed(envelope), *self.parts.values(), *self.log])

    @classmethod
    def from_bytes(cls, blob: bytes, kind: Kind) -> Message:
        """The message in ``blob``; `WireError` if it is damaged, of another version or of another kind."""
        reader = Reader(blob)
        (length,) = _LENGTH.unpack(reader.bytes(_LENGTH.size))
        envelope = opened(reader.bytes(length + CHECKSUM))
        try:
            version, found, header, parts, log = msgpack.unpackb(envelope)
        except Exception as error:
            raise WireError(f"not a message: {error}") from error
        if version != VERSION or found != kind:
            raise WireError(f"expected a {kind} of version {VERSION}, got {found!r} of version {version!r}")
        if not isinstance(header, dict):
            raise WireError("message of the wrong shape")
        try:
            taken = {str(name): reader.bytes(int(length)) for name, length in parts}
            message = cls(kind, header, taken, [reader.bytes(int(length)) for length in log])
        except (TypeError, ValueError, OverflowError) as error:
            raise WireError(f"message of the wrong shape: {error}") from error
        reader.end()
        return message

    def number(self, key: str) -> float:
        """A header entry that must be a number, and finite."""
        value = self.header.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise WireError(f"header entry {key!r} is missing or not a number")
        return value
