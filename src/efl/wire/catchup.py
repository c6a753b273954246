"""Catching up: what a client that sat out rounds must be sent to have the server's model again.

Every change of the model is broadcast as one payload and gets the next version number; version 0 is the model training
starts from, which a client can often rebuild from its seed. A client at version a is sent the broadcasts a+1 … now, one
by one (as they were, or coded anew by the present field), merged, or the whole model, whichever is shortest. Adding the
same numbers in the same order gives it the server's model bit for bit. Lattice increments lie on a grid on which sums
are exact in any order: they are sent as one, their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.context import Context
from efl.wire.limits import dense_bytes, most_broadcasts
from efl.wire.merged import most_merged, pack_merged, unpack_merged
from efl.wire.payloads import Lattice, Payload, Ternary, decode, encode, kind_of
from efl.wire.payloads.lattice import LATTICE, total
from efl.wire.reader import Buffer

How = Literal["each", "merged", "model", "summed"]
HOWS: tuple[How, ...] = get_args(How)
FIRST = -1
"""The version of a client that has no model, but may rebuild the first one."""
NO_MODEL = -2
"""The version of a client that has no model and cannot rebuild one."""
FURTHEST = 1000  # broadcasts that a sum reaches back
MOST_ENTRIES = 8  # non-zeros of all broadcasts in a catch-up, per parameter; beyond, the whole model is less work
WORTH_CODING_ANEW = 2500  # non-zeros; in smaller models a better code costs more of a round than it saves


@dataclass(frozen=True)
class BroadcastLog:
    """The encoded broadcasts after version ``base``; kept only while short and few.

    Those that are sent one by one must together be shorter than the model; of those that are summed, more may be kept.
    """

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
        summed = _is_lattice(blob)
        most = FURTHEST if summed else most_broadcasts(model_bytes // 4)
        longest = longest_log(model_bytes // 4) if summed else model_bytes
        length = sum(map(len, log.blobs))
        dropped = 0
        while dropped < len(log.blobs) and (length > longest or len(log.blobs) - dropped > most):
            length -= len(log.blobs[dropped])
            dropped += 1
        return BroadcastLog(log.base + dropped, log.blobs[dropped:])

    def state_dict(self) -> dict[str, Any]:
        """The broadcasts as one tensor of bytes, their lengths and the first version."""
        blob = torch.from_numpy(np.frombuffer(b"".join(self.blobs), dtype=np.uint8).copy())
        return {"base": self.base, "lengths": list(map(len, self.blobs)), "blobs": blob}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> BroadcastLog:
        """The log that `state_dict` was taken of."""
        blob, ends = state["blobs"].numpy().tobytes(), accumulate(state["lengths"], initial=0)
        return cls(int(state["base"]), tuple(blob[start:end] for start, end in pairwise(ends)))

    def since(self, version: int) -> Sequence[bytes] | None:
        """What a client at ``version`` lacks; None if only the whole model will do."""
        if not self.base <= version <= self.version:
            return None
        return self.blobs[version - self.base :]


@dataclass(frozen=True)
class ModelUpdate:
    """What a client is sent: broadcasts after version ``base``, or the whole model.

    ``current_bytes`` of its bytes are for the last broadcast; the others catch up with those before.
    """

    how: How
    base: int
    blobs: Sequence[bytes]
    current_bytes: int

    def __len__(self) -> int:
        return sum(map(len, self.blobs))


class CatchUp:
    """The model updates of one round, each worked out once for all clients at the same version."""

    def __init__(self, log: BroadcastLog, context: Context, model: Callable[[], bytes]) -> None:
        self.log, self.context, self._model = log, context, model
        self._updates: dict[int, ModelUpdate] = {}
        self._sums: dict[int, Lattice] = {}  # by the version they start from
        self._anew: dict[int, bytes] = {}  # by the identity of a blob in the log

    def update(self, version: int) -> ModelUpdate:
        """The shortest way from ``version`` to now."""
        if version not in self._updates:
            self._updates[version] = self._shortest(version)
        return self._updates[version]

    def _shortest(self, version: int) -> ModelUpdate:
        base = 0 if version == FIRST else version
        missed = None if version == NO_MODEL else self.log.since(base)
        if missed is None:
            return self._whole_model()
        if missed and all(map(_is_lattice, missed)):
            return self._summed(base, missed)
        options = [ModelUpdate("each", base, missed, len(missed[-1]) if missed else 0)]
        increments = [None if is_whole(blob) else increment(blob, self.context.layout) for blob in missed]
        entries = sum(len(one.positions) for one in increments if one is not None)
        if entries > MOST_ENTRIES * self.context.layout.n:
            return self._whole_model()
        known = [one for one in increments if isinstance(one, Ternary) and len(one.positions) >= WORTH_CODING_ANEW]
        if known and len(known) == len(missed):
            anew = [self._coded_anew(blob, one) for blob, one in zip(missed, known, strict=True)]
            options.append(ModelUpdate("each", base, anew, len(anew[-1])))
            if 1 < len(known) <= most_merged(self.context.layout):
                blob = pack_merged(known, self.context)
                options.append(ModelUpdate("merged", base, [blob], len(blob) // len(known)))
        if len(options[0]) > 4 * self.context.layout.n:
            options.append(self._whole_model())
        return min(options, key=len)

    def _summed(self, base: int, missed: Sequence[bytes]) -> ModelUpdate:
        """The sum of the broadcasts, or the whole model where that is shorter; it is added to what is known."""
        layout = self.context.layout
        if base not in self._sums:
            known = min((version for version in self._sums if version > base), default=self.log.version)
            self._sums[base] = total(
                [one for blob in missed[: known - base] if isinstance(one := increment(blob, layout), Lattice)]
                + ([self._sums[known]] if known in self._sums else []),
                layout,
            )
        blob = encode(self._sums[base], self.context)
        current = len(missed[-1]) if len(missed) == 1 else len(blob) // len(missed)
        update = ModelUpdate("summed", base, [blob], min(current, len(blob)))
        return update if len(update) <= dense_bytes(layout.n) else self._whole_model()

    def _coded_anew(self, blob: bytes, change: Ternary) -> bytes:
        """A broadcast of an earlier round by the field of this one, which it did not know."""
        if id(blob) not in self._anew:
            self._anew[id(blob)] = encode(change, self.context)
        return self._anew[id(blob)]

    def _whole_model(self) -> ModelUpdate:
        if len(self.log.blobs) == 1 and is_whole(self.log.blobs[0]):
            blob = self.log.blobs[0]
            return ModelUpdate("model", NO_MODEL, [blob], current_bytes=len(blob))
        return ModelUpdate("model", NO_MODEL, [self._model()], current_bytes=0)


@lru_cache(maxsize=512)
def increment(blob: bytes, layout: Layout) -> Ternary | Lattice | None:
    """A broadcast as it is kept in the log, taken apart once and not in every round; None if it is a whole model."""
    change = None if is_whole(blob) else decode(blob, Context(layout))
    return change if isinstance(change, Ternary | Lattice) else None


def longest_log(n: int) -> int:
    """The most bytes of broadcasts that are kept to be summed, for a model of n parameters."""
    return 8 * dense_bytes(n)


def _is_lattice(blob: bytes) -> bool:
    return blob[:1] == bytes([LATTICE])


def is_whole(blob: bytes) -> bool:
    """Whether an encoded payload is a vector's new value, and not a change of it."""
    return kind_of(blob).absolute


class Changes:
    """The changes of a model that a `ModelUpdate` brings, in order, each decoded when it comes up.

    So a catch-up takes no more memory than one broadcast. What is wrong with a later one is found out when it comes up:
    apply changes to a copy of the model.
    """

    def __init__(self, count: int, decoded: Callable[[], Iterator[Payload]], layout: Layout, skip: int = 0) -> None:
        self._count, self._decoded, self._layout, self._skip = count, decoded, layout, skip

    def __len__(self) -> int:
        return max(0, self._count - self._skip)

    def __getitem__(self, rest: slice) -> Changes:
        """The changes from one on."""
        skip, stop, step = rest.indices(len(self))
        if (stop, step) != (len(self), 1):
            raise ValueError("changes can only be left out at the beginning")
        return Changes(self._count, self._decoded, self._layout, self._skip + skip)

    def __iter__(self) -> Iterator[Payload]:
        entries = 0
        for number, change in enumerate(self._decoded()):
            if not change.changes_vector:
                raise WireError("a broadcast must be a model or an increment")
            entries += len(change.positions) if isinstance(change, Ternary) else 0
            if entries > MOST_ENTRIES * self._layout.n:
                raise WireError("broadcasts with more non-zeros than are sent one by one")
            if number >= self._skip:
                yield change


def received(how: str, blobs: Sequence[Buffer], context: Context) -> Changes:
    """The changes of the model in a model update.

    Args:
        how: ``each``, ``merged``, ``model`` or ``summed``, as in `TrainRequest`.
        blobs: Encoded payloads that may be anything.
        context: What both sides know.

    Returns:
        As many changes as there were broadcasts; a whole model and a sum are one.

    Raises:
        WireError: ``blobs`` are anything else; also raised while going through the changes.
    """
    layout = context.layout
    if sum(map(len, blobs)) > dense_bytes(layout.n) or len(blobs) > most_broadcasts(layout.n):
        raise WireError("broadcasts that are longer than the model, or too many")
    if how not in HOWS or (how != "each" and len(blobs) != 1):
        raise WireError(f"{len(blobs)} payloads are no {how} update")
    if how == "merged":
        count, _ = unpack_merged(blobs[0], context)
        return Changes(count, lambda: unpack_merged(blobs[0], context)[1], layout)
    return Changes(len(blobs), lambda: (decode(blob, context) for blob in blobs), layout)
