"""A message: a small header, named payloads, and for requests the broadcasts the client has missed.

One blob: version, kind, header, parts and log in MessagePack, then a CRC-32. The CRC catches damage, not
forgery.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgpack

from efl.errors import WireError

VERSION = 3
Kind = Literal["request", "reply"]


@dataclass(frozen=True)
class Message:
    """``parts`` and ``log`` hold encoded payloads: what many clients are sent alike is encoded once.

    >>> Message.from_bytes(Message("reply", {"round": 3}).to_bytes(), "reply").header
    {'round': 3}
    """

    kind: Kind
    header: Mapping[str, Any]
    parts: Mapping[str, bytes] = field(default_factory=dict)
    log: Sequence[bytes] = ()

    def to_bytes(self) -> bytes:
        """The blob that travels."""
        body: bytes = msgpack.packb([VERSION, self.kind, dict(self.header), dict(self.parts), list(self.log)])
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def from_bytes(cls, blob: bytes, kind: Kind) -> Message:
        """The message in ``blob``; `WireError` if it is damaged, of another version or of another kind."""
        body, tail = blob[:-4], blob[-4:]
        if len(tail) < 4 or zlib.crc32(body) != struct.unpack("<I", tail)[0]:
            raise WireError("message damaged: checksum does not match")
        try:
            version, found, header, parts, log = msgpack.unpackb(body)
        except Exception as error:
            raise WireError(f"not a message: {error}") from error
        if version != VERSION or found != kind:
            raise WireError(f"expected a {kind} of version {VERSION}, got {found!r} of version {version!r}")
        if not (isinstance(header, dict) and isinstance(parts, dict) and isinstance(log, list)):
            raise WireError("message of the wrong shape")
        if not all(isinstance(blob, bytes) for blob in [*parts.values(), *log]):
            raise WireError("message parts must be bytes")
        return cls(kind, header, parts, log)

    def number(self, key: str) -> float:
        """A header entry that must be a number."""
        value = self.header.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise WireError(f"header entry {key!r} is missing or not a number")
        return value
