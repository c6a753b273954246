"""An elastic field: a Fisher diagonal with the displacement of the anchor it pulls to.

In full it is exact. In short, at some positions, it is rounded: Fisher values to an eighth, displacements to a quarter
of an octave.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.context import Context, cheapest_order, scheme
from efl.wire.coordinate_order import chunks
from efl.wire.logarithm import ZERO, logarithms, values_of
from efl.wire.payloads.registry import Payload, Positions, Vector, register
from efl.wire.positions import most_place_bytes, pack_places, unpack_places
from efl.wire.rank_one import OFFSET, RankOneFisher
from efl.wire.reader import Reader, deflated_bytes, varints

DENSE_FIELD, FIELD = 4, 5
NO_MOVE = 127  # the code of no displacement; others are steps below the largest


@register(DENSE_FIELD, FIELD)
@dataclass(frozen=True, eq=False)
class Field(Payload):
    """Fisher values and the anchor's displacement from a reference both sides know, at ``index`` (None: everywhere).

    ``factored_fisher`` is a guess of the Fisher values everywhere. At an index a Fisher value is sent in eighths of an
    octave below the largest (or below the guess), 255 at most: what lies further below, eleven orders of magnitude,
    comes back as the smallest there is.
    """

    changes_vector: ClassVar[bool] = False

    layout: Layout
    index: Positions | None
    fisher: Vector
    displacement: Vector
    factored_fisher: RankOneFisher | None = None

    def pack(self, context: Context) -> bytes:
        """All values, or the guess, positions and codes."""
        if self.index is None:
            values = np.concatenate([self.fisher, self.displacement]).astype("<f4")
            return bytes([DENSE_FIELD]) + values.tobytes()
        guessed = self.factored_fisher
        number, bounds, places, order = cheapest_order(self.index, _for_entries(context, guessed))
        known = logarithms(self.fisher)
        guess = np.zeros(len(known), np.int64) if guessed is None else guessed.steps(self.index)
        base, codes = _relative(known, guess)
        top, moves = _moves(self.displacement)
        squeezed = zlib.compress(codes[order].tobytes() + moves[order].tobytes(), 9)
        head = bytes([FIELD, guessed is not None]) + (b"" if guessed is None else guessed.pack()) + bytes([number])
        return head + pack_places(places, bounds) + varints([base + OFFSET, top + OFFSET, len(squeezed)]) + squeezed

    @classmethod
    def unpack(cls, kind: int, reader: Reader, context: Context) -> Self:
        """Read them."""
        return cls._unpack_full(reader, context) if kind == DENSE_FIELD else cls._unpack_short(reader, context)

    @classmethod
    def _unpack_full(cls, reader: Reader, context: Context) -> Self:
        n = context.layout.n
        fisher, displacement = reader.floats(n), reader.floats(n)
        if not (fisher >= 0).all():
            raise WireError("a Fisher value is negative")
        return cls(context.layout, None, fisher, displacement)

    @classmethod
    def _unpack_short(cls, reader: Reader, context: Context) -> Self:
        guessed = RankOneFisher.unpack(reader, context.layout) if reader.byte() else None
        order, bounds = scheme(reader.byte(), _for_entries(context, guessed))
        index = order.position(unpack_places(reader, bounds))
        base, top, length = reader.varints(3)
        if max(base, top) >= 2 * OFFSET:
            raise WireError("the top of a field is out of range")
        codes = reader.inflated(length, 2 * len(index)).reshape(2, -1)
        if order.moves:
            codes = _sort_with(index, codes)
        fisher, displacement = np.empty((2, len(index)), dtype=np.float32)
        for part in chunks(len(index)):  # so that whole numbers of eight bytes are needed for a few at a time only
            below = codes[0, part].astype(np.int64)
            guess = 0 if guessed is None else guessed.steps(index[part])
            fisher[part] = values_of(guess + (base - OFFSET) - below)
            displacement[part] = _moved(top - OFFSET, codes[1, part])
        return cls(context.layout, index, fisher, displacement, guessed)

    @classmethod
    def most_bytes(cls, layout: Layout) -> int:
        """In full; in tiny models a short one may be longer."""
        n, rows_and_columns = layout.n, sum(block.rows + block.columns for block in layout.blocks)
        short = 64 + deflated_bytes(rows_and_columns) + most_place_bytes(layout) + deflated_bytes(2 * n)
        return max(1 + 8 * n, short)


def _for_entries(context: Context, guessed: RankOneFisher | None) -> Context:
    """Entries of a field are coded by the field both sides have, or where they have none, by its own guess."""
    return context if guessed is None or context.field is not None else Context(context.layout, guessed)


def _sort_with(index: Positions, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Sort positions in place; the codes in the same order. One array of whole numbers is all it takes."""
    bits = len(index).bit_length()
    index <<= bits
    for part in chunks(len(index)):
        index[part] |= np.arange(part.start, min(part.stop, len(index)))
    index.sort()
    ordered = np.empty_like(codes)
    for part in chunks(len(index)):
        ordered[:, part] = codes[:, index[part] & ((1 << bits) - 1)]
    index >>= bits
    return ordered


def _relative(known: Positions, guess: Positions) -> tuple[int, NDArray[np.uint8]]:
    """Steps below the largest excess over the guess; zeros and what is far below are the furthest there is."""
    excess = known - guess
    base = min(int(excess.max(initial=-OFFSET)), OFFSET - 1)
    return base, np.minimum(np.maximum(base - excess, 0), 255).astype(np.uint8)


def _moves(displacement: Vector) -> tuple[int, NDArray[np.uint8]]:
    """Sign, and quarters of an octave below the largest."""
    steps = logarithms(np.abs(displacement))
    top = int(max(steps.max(initial=ZERO), -OFFSET))
    below = np.minimum((top - steps + 1) // 2, NO_MOVE)
    return top, (below | (displacement < 0).astype(np.int64) << 7).astype(np.uint8)


def _moved(top: int, codes: NDArray[np.uint8]) -> Vector:
    below = (codes & 127).astype(np.int64)
    magnitude = values_of(np.where(below < NO_MOVE, top - 2 * below, ZERO))
    return np.where(codes >= 128, -magnitude, magnitude).astype(np.float32)
