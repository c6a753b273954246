"""An increment of whole multiples of one step: ternary is the case of codes −1, 0, 1."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Self

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.code_bytes import code_bytes, most_code_bytes, read_codes
from efl.wire.context import Context, cheapest_order, scheme
from efl.wire.coordinate_order import CLASSES
from efl.wire.payloads.registry import Positions, SparseIncrement, Vector, register
from efl.wire.reader import Reader
from efl.wire.sparse import add_codes, non_zeros

LATTICE = 8
LARGEST_CODE = 2**24  # up to which a float32 is a whole number
CLASS_BITS = 100  # what a class must save: a table of its own takes as long as coding a few hundred numbers
LARGEST_STEP = float(np.finfo(np.float32).max) / LARGEST_CODE
_STEP = struct.Struct("<f")


@register(LATTICE)
@dataclass(frozen=True, eq=False)
class Lattice(SparseIncrement):
    """An increment of ``step`` times the non-zero ``codes`` at increasing ``positions``."""

    layout: Layout
    positions: Positions
    codes: NDArray[np.int32]
    step: float

    @classmethod
    def of(cls, layout: Layout, codes: NDArray[np.int32], step: float) -> Self:
        """The increment of a code for every coordinate."""
        return cls(layout, *non_zeros(codes), step)

    @cached_property
    def values(self) -> Vector:
        """The increment at ``positions``, which several have a use for."""
        return self.codes.astype(np.float32) * np.float32(self.step)

    @cached_property
    def squares(self) -> float:
        """The sum of the squared codes."""
        codes = self.codes.astype(np.float64)
        return float(codes @ codes)

    def pack(self, context: Context) -> bytes:
        """The step, positions in the order that makes them shortest, magnitudes in that order, signs."""
        number, bounds, places, order = cheapest_order(self.positions, context, CLASS_BITS)
        head = bytes([LATTICE, number]) + _STEP.pack(self.step)
        return head + code_bytes(self.codes, places, order, bounds)

    @classmethod
    def unpack(cls, kind: int, reader: Reader, context: Context) -> Self:
        """Read them; takes memory for at most as many positions as there are parameters."""
        order, bounds = scheme(reader.byte(), context)
        (step,) = _STEP.unpack(reader.bytes(_STEP.size))
        if not 0 < step <= LARGEST_STEP:
            raise WireError("a step out of range")
        return cls(context.layout, *read_codes(reader, order, bounds, LARGEST_CODE), step)

    @classmethod
    def most_bytes(cls, layout: Layout) -> int:
        """Magnitudes may be anything."""
        return 2 + _STEP.size + most_code_bytes(layout.n, CLASSES * len(layout.blocks))


def total(increments: Sequence[Lattice], layout: Layout) -> Lattice:
    """The sum of increments whose steps are powers of two, exactly; codes of 32 bits are enough for any model."""
    some = [one for one in increments if len(one.positions)]  # others may have any step
    step = min((one.step for one in some or increments), default=inf)
    codes = np.zeros(layout.n, dtype=np.int32)
    for one in some:
        add_codes(codes, one.positions, one.codes, int(one.step / step))
    return Lattice.of(layout, codes, step)
