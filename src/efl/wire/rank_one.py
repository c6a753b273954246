"""A Fisher diagonal in short: for every tensor, its row sums times its column sums, in eighths of an octave.

It says where parameters move much, which is what a code for positions needs to know, and it is a fair guess of every
value (`Field` corrects those that matter most).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.coordinate_order import ByField
from efl.wire.logarithm import LOWEST, ZERO, Whole, logarithms, values_of
from efl.wire.reader import Reader, varints

NOTHING = 255  # the code of zero; others are steps below the top
OFFSET = 2**15  # added to a logarithm on its way, so that it is not negative


@dataclass(frozen=True, eq=False)
class RankOneFisher:
    """Logarithms of row sums, and of column sums over the total, one tensor after the other."""

    layout: Layout
    rows: Whole
    columns: Whole

    @classmethod
    def of(cls, values: NDArray[np.float32], layout: Layout) -> RankOneFisher:
        """The rows and columns of a vector of non-negative numbers."""
        rows: list[NDArray[np.floating]] = []
        columns: list[NDArray[np.floating]] = []
        for block in layout.blocks:
            matrix = values[block.start : block.stop].reshape(block.rows, block.columns)
            rows.append(matrix.sum(1))
            total = rows[-1].sum()
            columns.append((matrix.sum(0) if block.rows > 1 else matrix[0]) / (total if total > 0 else 1))
        shortest = cls(layout, logarithms(np.concatenate(rows)), logarithms(np.concatenate(columns)))
        return shortest._as_sent()

    def _as_sent(self) -> RankOneFisher:
        """What the receiver will have: values far below the top are zero."""
        return RankOneFisher(self.layout, *(_decoded(*_codes(side)) for side in (self.rows, self.columns)))

    @cached_property
    def order(self) -> ByField:
        """Coordinates sorted by how much they tend to move."""
        return _order(self.layout, self.rows.tobytes(), self.columns.tobytes())

    def dense(self) -> NDArray[np.float32]:
        """The guess of every value."""
        rows, columns = self.values
        out = np.empty(self.layout.n, dtype=np.float32)
        for block, at, across in zip(
            self.layout.blocks, self.layout.row_slices, self.layout.column_slices, strict=True
        ):
            matrix = out[block.start : block.stop].reshape(block.rows, block.columns)
            np.multiply.outer(rows[at], columns[across], out=matrix)
        return out

    @property
    def values(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Rows and columns themselves, whose product is the guess."""
        return values_of(self.rows), values_of(self.columns)

    @property
    def total(self) -> float:
        """The sum of all guesses."""
        rows, columns = (side.astype(np.float64) for side in self.values)
        slices = zip(self.layout.row_slices, self.layout.column_slices, strict=True)
        return float(sum(rows[at].sum() * columns[across].sum() for at, across in slices))

    def steps(self, positions: Whole) -> Whole:
        """The guessed logarithm at increasing positions."""
        layout = self.layout
        tensor = layout.starts.searchsorted(positions, side="right") - 1
        width = layout.widths[tensor]
        row, column = np.divmod(positions - layout.starts[tensor], width)
        row += layout.first_rows[tensor]
        column += layout.first_columns[tensor]
        guess: Whole = np.maximum(self.rows[row] + self.columns[column], LOWEST)
        return guess

    def at(self, positions: Whole) -> NDArray[np.float32]:
        """The guess at increasing positions."""
        return values_of(self.steps(positions))

    def pack(self) -> bytes:
        """Tops, then all codes, compressed."""
        (row_top, rows), (column_top, columns) = _codes(self.rows), _codes(self.columns)
        squeezed = zlib.compress(rows.tobytes() + columns.tobytes(), 9)
        return varints([row_top + OFFSET, column_top + OFFSET, len(squeezed)]) + squeezed

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout) -> RankOneFisher:
        """Read what `pack` wrote."""
        row_top, column_top, length = reader.varints(3)
        if max(row_top, column_top) >= 2 * OFFSET:
            raise WireError("the top of a field is out of range")
        rows, columns = sum(b.rows for b in layout.blocks), sum(b.columns for b in layout.blocks)
        codes = reader.inflated(length, rows + columns)
        return cls(layout, _decoded(row_top - OFFSET, codes[:rows]), _decoded(column_top - OFFSET, codes[rows:]))


@lru_cache(maxsize=2)
def _order(layout: Layout, rows: bytes, columns: bytes) -> ByField:
    """The order of a round; where server and clients are one process, both have the same."""
    r, c = (np.frombuffer(side, np.int64) for side in (rows, columns))
    slices = zip(layout.row_slices, layout.column_slices, strict=True)
    return ByField(layout, [(r[at], c[across]) for at, across in slices])


def _codes(side: Whole) -> tuple[int, NDArray[np.uint8]]:
    top = max(int(side.max(initial=ZERO)), -OFFSET)
    return top, np.minimum(top - side, NOTHING).astype(np.uint8)


def _decoded(top: int, codes: NDArray[np.uint8]) -> Whole:
    return np.where(codes < NOTHING, top - codes.astype(np.int64), ZERO)
