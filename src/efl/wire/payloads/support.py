"""An increment at positions that are drawn by a number both sides know: only values travel.

Where everybody's increments are at the same positions they add up as they are, so that a sum is all that a server needs
to see of them (secure aggregation).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.context import Context
from efl.wire.payloads.registry import Positions, SparseIncrement, Vector, register
from efl.wire.reader import Reader, varints

ON_SUPPORT = 10
LARGEST_DRAW = 2**31
ODD = 0x9E3779B97F4A7C15
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


@lru_cache(maxsize=8)
def support(n: int, count: int, draw: int) -> Positions:
    """``count`` of n positions in increasing order, as good as random, the same wherever this number is drawn.

    They are those with the smallest keys. A position's key is what SplitMix64 (Steele et al. 2014) makes of it and the
    number: arithmetic that no library can change.

    >>> support(10, 3, 0).tolist(), support(10, 3, 1).tolist()
    ([0, 3, 5], [0, 7, 9])
    """
    keys = np.arange(n, dtype=np.uint64) + np.uint64(draw * ODD % 2**64)
    keys *= np.uint64(ODD)
    for shift, factor in MIXING:
        keys ^= keys >> np.uint64(shift)
        keys *= np.uint64(factor)
    keys ^= keys >> np.uint64(31)
    chosen = np.sort(np.argpartition(keys, count - 1)[:count]) if 0 < count < n else np.arange(n)[:count]
    chosen.flags.writeable = False
    return chosen


@register(ON_SUPPORT)
@dataclass(frozen=True, eq=False)
class OnSupport(SparseIncrement):
    """An increment of ``values`` at the positions that ``draw`` stands for in a vector of ``n``."""

    n: int
    draw: int
    values: Vector

    @property
    def positions(self) -> Positions:
        """Where the values belong, drawn when they are needed."""
        return support(self.n, len(self.values), self.draw)

    def pack(self, context: Context) -> bytes:
        """The number, and the values."""
        head = bytes([ON_SUPPORT]) + varints([self.draw, len(self.values)])
        return head + self.values.astype("<f4", copy=False).tobytes()

    @classmethod
    def unpack(cls, kind: int, reader: Reader, context: Context) -> Self:
        """Read them; positions are not drawn yet."""
        draw, count = reader.varints(2)
        if draw > LARGEST_DRAW or count > context.layout.n:
            raise WireError("a support out of range")
        return cls(context.layout.n, draw, reader.floats(count))

    @classmethod
    def most_bytes(cls, layout: Layout) -> int:
        """All values."""
        return 1 + 5 + 10 + 4 * layout.n
