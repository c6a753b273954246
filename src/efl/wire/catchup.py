"""Catching up: what a client that sat out rounds must be sent to have the server's model again.

Every change of the model is broadcast as one payload and gets the next version number. A client at
version a is sent the broadcasts a+1 … now, in order, or the whole model where that is shorter. Adding the
same numbers in the same order gives it the server's model bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class BroadcastLog:
    """The encoded broadcasts after version ``base``; kept only while shorter than the model itself."""

    base: int = 0
    blobs: tuple[bytes, ...] = ()

    @property
    def version(self) -> int:
        """The version a client has after the last broadcast."""
        return self.base + len(self.blobs)

    def append(self, blob: bytes, model_bytes: int, *, absolute: bool) -> BroadcastLog:
        """The log with one broadcast more; an ``absolute`` one (a whole model) makes all before it needless."""
        if absolute:
            return BroadcastLog(self.version, (blob,))
        log = replace(self, blobs=(*self.blobs, blob))
        while log.blobs and sum(map(len, log.blobs)) > model_bytes:
            log = BroadcastLog(log.base + 1, log.blobs[1:])
        return log

    def since(self, version: int | None) -> Sequence[bytes] | None:
        """What a client at ``version`` (None: it has no model) lacks; None if only the whole model will do."""
        if version is None or not self.base <= version <= self.version:
            return None
        return self.blobs[version - self.base :]
