"""Catching up: what a client that sat out rounds must be sent to have the server's model again.

Every change of the model is broadcast as one payload and gets the next version number; version 0 is the model training
starts from, which a client can often rebuild from its seed. A client at version a is sent the broadcasts a+1 … now, one
by one (as they were, or coded anew by the present field), merged, or the whole model, whichever is shortest. Adding the
same numbers in the same order gives it the server's model bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.context import Context
from efl.wire.limits import MOST_BROADCASTS
from efl.wire.merged import pack_merged, unpack_merged
from efl.wire.payload import Change, Field, Ternary, decode, encode, is_whole

How = Literal["each", "merged", "model"]
FIRST, NO_MODEL = -1, -2  # versions of a client that has no model: it may rebuild the first one, or cannot
WORTH_CODING_ANEW = 2500  # non-zeros; in smaller models a better code costs more of a round than it saves


@dataclass(frozen=True)
class BroadcastLog:
    """The encoded broadcasts after version ``base``; kept only while shorter than the model itself, and few."""

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
        while log.blobs and (sum(map(len, log.blobs)) > model_bytes or len(log.blobs) > MOST_BROADCASTS):
            log = BroadcastLog(log.base + 1, log.blobs[1:])
        return log

    def since(self, version: int) -> Sequence[bytes] | None:
        """What a client at ``version`` lacks; None if only the whole model will do."""
        if not self.base <= version <= self.version:
            return None
        return self.blobs[version - self.base :]


@dataclass(frozen=True)
class Delivery:
    """What a client is sent: broadcasts after version ``base``, or the whole model.

    ``fresh`` of its bytes are for the last broadcast; the others catch up with those before.
    """

    how: How
    base: int
    blobs: Sequence[bytes]
    fresh: int

    def __len__(self) -> int:
        return sum(map(len, self.blobs))


class Courier:
    """The deliveries of one round, each worked out once for all clients at the same version."""

    def __init__(self, log: BroadcastLog, context: Context, model: Callable[[], bytes]) -> None:
        self.log, self.context, self._model = log, context, model
        self._deliveries: dict[int, Delivery] = {}
        self._anew: dict[int, bytes] = {}  # by the identity of a blob in the log

    def delivery(self, version: int) -> Delivery:
        """The shortest way from ``version`` to now."""
        if version not in self._deliveries:
            self._deliveries[version] = self._shortest(version)
        return self._deliveries[version]

    def _shortest(self, version: int) -> Delivery:
        base = 0 if version == FIRST else version
        missed = None if version == NO_MODEL else self.log.since(base)
        if missed is None:
            return self._whole_model()
        options = [Delivery("each", base, missed, len(missed[-1]) if missed else 0)]
        increments = [increment(blob, self.context.layout) for blob in missed]
        known = [one for one in increments if one is not None and len(one.positions) >= WORTH_CODING_ANEW]
        if known and len(known) == len(missed):
            anew = [self._coded_anew(blob, one) for blob, one in zip(missed, known, strict=True)]
            options.append(Delivery("each", base, anew, len(anew[-1])))
            if len(known) > 1:
                blob = pack_merged(known, self.context)
                options.append(Delivery("merged", base, [blob], len(blob) // len(known)))
        if len(options[0]) > 4 * self.context.layout.n:
            options.append(self._whole_model())
        return min(options, key=len)

    def _coded_anew(self, blob: bytes, change: Ternary) -> bytes:
        """A broadcast of an earlier round by the field of this one, which it did not know."""
        if id(blob) not in self._anew:
            self._anew[id(blob)] = encode(change, self.context)
        return self._anew[id(blob)]

    def _whole_model(self) -> Delivery:
        if len(self.log.blobs) == 1 and is_whole(self.log.blobs[0]):
            blob = self.log.blobs[0]
            return Delivery("model", NO_MODEL, [blob], fresh=len(blob))
        return Delivery("model", NO_MODEL, [self._model()], fresh=0)


@lru_cache(maxsize=512)
def increment(blob: bytes, layout: Layout) -> Ternary | None:
    """A broadcast as it is kept in the log, taken apart once and not in every round; None if it is a whole model."""
    change = None if is_whole(blob) else decode(blob, Context(layout))
    return change if isinstance(change, Ternary) else None


def received(how: str, blobs: Sequence[bytes], context: Context) -> list[Change]:
    """The changes of the model in a delivery, in order."""
    if how == "merged":
        if len(blobs) != 1:
            raise WireError("merged broadcasts come as one")
        return list(unpack_merged(blobs[0], context))
    changes = [decode(blob, context) for blob in blobs]
    if how not in ("each", "model") or any(isinstance(change, Field) for change in changes):
        raise WireError("a broadcast must be a model or an increment")
    return [change for change in changes if not isinstance(change, Field)]
