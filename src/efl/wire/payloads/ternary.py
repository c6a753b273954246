"""An increment from {-μ, 0, μ} (Algorithm 2): one μ for all, or one for each tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from efl.layout import Layout
from efl.wire.context import Context, cheapest_order, scheme
from efl.wire.payloads.registry import Positions, SparseIncrement, Vector, register
from efl.wire.positions import most_place_bytes, pack_places, unpack_places
from efl.wire.reader import Reader
from efl.wire.sign_coding import pack_signs, unpack_signs

TERNARY = 3


@register(TERNARY)
@dataclass(frozen=True, eq=False)
class Ternary(SparseIncrement):
    """An increment at increasing ``positions``: ±``scales[0]``, or with one scale a tensor, that of its tensor."""

    layout: Layout
    positions: Positions
    positive: NDArray[np.bool_]
    scales: Vector

    @property
    def values(self) -> Vector:
        """The increment at ``positions``."""
        whole = len(self.scales) == 1
        magnitude = self.scales[0] if whole else np.repeat(self.scales, self.layout.counts(self.positions))
        return np.where(self.positive, magnitude, -magnitude).astype(np.float32)

    def add_to(self, total: Vector, weight: float, reference: Vector) -> None:
        """Add ``weight`` times the increment, in time that grows with the non-zeros only."""
        import torch  # as in `add_scaled`

        values = torch.from_numpy(self.values) * weight
        torch.from_numpy(total).index_add_(0, torch.from_numpy(self.positions), values)

    def pack(self, context: Context) -> bytes:
        """Scales, positions in the order that makes them shortest, signs."""
        number, bounds, places, _ = cheapest_order(self.positions, context)
        by_row, signs = pack_signs(self.positive, self.positions, self.layout)
        head = bytes([TERNARY, number, by_row << 1 | (len(self.scales) == 1)])
        return head + self.scales.astype("<f4").tobytes() + pack_places(places, bounds) + signs

    @classmethod
    def unpack(cls, kind: int, reader: Reader, context: Context) -> Self:
        """Read them; takes memory for at most as many positions as there are parameters."""
        order, bounds = scheme(reader.byte(), context)
        flags = reader.byte()
        scales = read_scales(reader, context, one=bool(flags & 1))
        positions = order.position(unpack_places(reader, bounds))
        if order.moves:
            positions.sort()
        positive = unpack_signs(reader, bool(flags & 2), positions, context.layout)
        return cls(context.layout, positions, positive, scales)

    @classmethod
    def most_bytes(cls, layout: Layout) -> int:
        """Every second parameter is the worst case for positions, every one for signs."""
        return 3 + 4 * len(layout.blocks) + most_place_bytes(layout) + -(-layout.n // 8)


def read_scales(reader: Reader, context: Context, *, one: bool) -> Vector:
    """One scale for all, or one for each tensor."""
    return reader.scales(1 if one else len(context.layout.blocks))
