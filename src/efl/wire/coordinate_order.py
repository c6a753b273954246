"""Coordinates in an order in which those about equally likely to be non-zero lie together, in classes.

Where both sides have an elastic field, its rows and columns say how much a coordinate tends to move: coordinate (i, j)
of a tensor goes by the sum of its row's and its column's logarithm, one class an octave below the tensor's largest.
Otherwise a tensor is a class.

A cell is all rows of one logarithm crossed with all columns of one, within a tensor; cells are laid out class by class.
So a coordinate's place is worked out from tables of rows, columns and cells, never from a table of all coordinates:
work grows with the number of non-zeros, not with the length of the vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from efl.layout import Layout
from efl.native import Order, loaded
from efl.wire.logarithm import STEPS
from efl.wire.sparse import OUTSIDE, in_order

Whole = NDArray[np.int64]
Found = TypeVar("Found", Whole, tuple[Whole, Whole])

CLASSES = 24  # of a tensor; coordinates further below the top than that many octaves go with the last
EVERY = slice(None)
CHUNK = 2**16  # numbers worked on at a time, so that scratch space does not grow with the vector


def chunks(count: int) -> Iterator[slice]:
    """0 … ``count`` in pieces of at most `CHUNK`.

    >>> [(piece.start, piece.stop) for piece in chunks(CHUNK + 5)]
    [(0, 65536), (65536, 65541)]
    """
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


class CoordinateOrder(Protocol):
    """A bijection of 0 … n−1; class c has the places ``bounds[c]`` … ``bounds[c + 1]`` − 1."""

    moves: ClassVar[bool]  # whether places are not just the positions

    @property
    def bounds(self) -> Whole:
        """Where classes begin and end."""
        ...

    @property
    def tables(self) -> Order | None:
        """What compiled code goes by; None where nothing moves, or numbers of 32 bits are too few."""
        ...

    def place(self, positions: Whole) -> Whole:
        """The places of increasing positions."""
        ...

    def position(self, places: Whole) -> Whole:
        """The positions of increasing places."""
        ...

    def placed(self, positions: Whole) -> tuple[Whole, Whole | slice]:
        """The places of increasing positions in order, and that order."""
        ...

    def located(self, places: Whole) -> tuple[Whole, Whole | slice]:
        """The positions of increasing places in order, and that order."""
        ...


@dataclass(frozen=True)
class ByTensor:
    """Everything where it is; a class for each tensor."""

    layout: Layout
    moves: ClassVar[bool] = False
    tables: ClassVar[None] = None

    @cached_property
    def bounds(self) -> Whole:
        """Where tensors begin and end."""
        return np.append(self.layout.starts, self.layout.n)

    def place(self, positions: Whole) -> Whole:
        """The positions themselves."""
        return positions

    def position(self, places: Whole) -> Whole:
        """The places themselves."""
        return places

    def placed(self, positions: Whole) -> tuple[Whole, slice]:
        """They are in order."""
        return positions, EVERY

    located = placed


@dataclass(frozen=True, eq=False)
class _Side:
    """The rows (or columns) of a tensor, grouped by logarithm."""

    group: Whole  # of every row
    rank: Whole  # of every row, within its group
    order: Whole  # the rows, group by group
    first: Whole  # where each group begins in ``order``
    size: Whole  # of each group
    value: Whole  # the logarithm of each group

    @classmethod
    def of(cls, logarithms: Whole) -> _Side:
        value, group, size = np.unique(logarithms, return_inverse=True, return_counts=True)
        order = np.argsort(logarithms, kind="stable")
        first = np.cumsum(size) - size
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order)) - np.repeat(first, size)
        return cls(group.reshape(-1), rank, order, first, size, value)


class ByField:
    """Classes by tensor and octave of row logarithm + column logarithm, those given in steps of an eighth."""

    moves: ClassVar[bool] = True

    def __init__(self, layout: Layout, logarithms: Sequence[tuple[Whole, Whole]]) -> None:
        self.layout = layout
        self._sides = [(_Side.of(rows), _Side.of(columns)) for rows, columns in logarithms]
        self._first_cell = np.cumsum([0, *(len(rows.size) * len(columns.size) for rows, columns in self._sides)])
        area, class_ = self._cell_areas(), self._cell_classes()
        self._order = np.argsort(class_, kind="stable")
        ends = np.cumsum(area[self._order])
        self._start = np.empty_like(area)
        self._start[self._order] = ends - area[self._order]
        sizes = np.bincount(class_, area).astype(np.int64)
        self.bounds = np.append(0, np.cumsum(sizes[sizes > 0]))

    def _cell_areas(self) -> Whole:
        pieces = [np.multiply.outer(rows.size, columns.size).reshape(-1) for rows, columns in self._sides]
        return np.concatenate(pieces)

    def _cell_classes(self) -> NDArray[np.integer]:
        """Small numbers: those are sorted in time that grows with their count only."""
        small = np.uint16 if CLASSES * len(self._sides) <= np.iinfo(np.uint16).max else np.uint32
        pieces: list[NDArray[np.integer]] = []
        for tensor, (rows, columns) in enumerate(self._sides):
            total = np.add.outer(rows.value, columns.value).reshape(-1)
            octave = np.clip((total.max() - total) // STEPS, 0, CLASSES - 1)
            pieces.append((CLASSES * tensor + octave).astype(small))
        return np.concatenate(pieces)

    def place(self, positions: Whole) -> Whole:
        """Tensor by tensor: cell, then row and column within the cell."""
        loops, tables = loaded(), self.tables
        if loops is not None and tables is not None:
            found = np.empty(len(positions), np.int32)
            return _done(loops.places(tables, positions, len(positions), found), found.astype(np.int64))
        counts = self.layout.counts(positions)
        stops = np.cumsum(counts)
        places = np.empty(len(positions), np.int64)
        for tensor in np.flatnonzero(counts).tolist():
            piece = slice(stops[tensor] - counts[tensor], stops[tensor])
            places[piece] = self._place(tensor, positions[piece])
        return places

    def _place(self, tensor: int, positions: Whole) -> Whole:
        block, (rows, columns) = self.layout.blocks[tensor], self._sides[tensor]
        start = self._start[self._first_cell[tensor] :]
        offset = positions - block.start
        row = offset // block.columns
        column = offset - row * block.columns
        group = columns.group[column]
        first = start[rows.group[row] * len(columns.size) + group]
        places: Whole = first + rows.rank[row] * columns.size[group] + columns.rank[column]
        return places

    def position(self, places: Whole) -> Whole:
        """Cell by cell in the order of places, then back to row and column."""
        loops, tables = loaded(), self.tables
        if loops is not None and tables is not None:
            found = np.empty(len(places), np.int32)
            return _done(loops.positions(tables, places, len(places), found), found.astype(np.int64))
        positions, starts = np.empty_like(places), self._start[self._order]
        for piece in chunks(len(places)):
            positions[piece] = self._position(places[piece], starts)
        return positions

    def placed(self, positions: Whole) -> tuple[Whole, Whole]:
        """The places in order, in one go where compiled code is at hand."""
        loops, tables = loaded(), self.tables
        if loops is None or tables is None:
            return in_order(self.place(positions))
        found = np.empty_like(positions), np.empty_like(positions)
        return _done(loops.placed(tables, positions, len(positions), *found), found)

    def located(self, places: Whole) -> tuple[Whole, Whole]:
        """The positions in order, likewise."""
        loops, tables = loaded(), self.tables
        if loops is None or tables is None:
            return in_order(self.position(places))
        found = np.empty_like(places), np.empty_like(places)
        return _done(loops.located(tables, places, len(places), *found), found)

    def _position(self, places: Whole, starts: Whole) -> Whole:
        first = max(int(np.searchsorted(starts, places[0], side="right")) - 1, 0)
        last = int(np.searchsorted(starts, places[-1], side="right"))
        counts = np.diff(np.append(np.searchsorted(places, starts[first:last]), len(places)))
        cell = np.repeat(self._order[first:last], counts)
        cells = self._cells
        row, column = np.divmod(places - self._start[cell], cells.width[cell])
        rows = cells.rows[cells.first_row[cell] + row]
        columns = cells.columns[cells.first_column[cell] + column]
        position: Whole = cells.start[cell] + rows * cells.stride[cell] + columns
        return position

    @cached_property
    def tables(self) -> Order | None:
        """As compiled code takes it; None where numbers of 32 bits are too few."""
        cells, sides, blocks = self._cells, self._sides, self.layout.blocks
        if cells.width.dtype != np.int32:
            return None
        row, column = (accumulate([getattr(b, side) for b in blocks], initial=0) for side in ("rows", "columns"))
        extents = [(block.start, block.stop, block.columns) for block in blocks]
        groups, first_cell = [len(columns.size) for _, columns in sides], self._first_cell.tolist()
        firsts = zip(extents, row, column, first_cell, groups, strict=False)
        rows, columns = ([pair[side] for pair in sides] for side in (0, 1))
        tables: dict[str, NDArray[np.integer]] = {
            "row_group": np.concatenate([side.group for side in rows]),
            "row_rank": np.concatenate([side.rank for side in rows]),
            "column_group": np.concatenate([side.group for side in columns]),
            "column_rank": np.concatenate([side.rank for side in columns]),
            "begin": self._start,
            "order": self._order,
            "of": np.repeat(np.arange(len(blocks)), np.diff(self._first_cell)),
            **{name: getattr(cells, name) for name in ("width", "rows", "columns", "first_row", "first_column")},
        }
        narrow = {name: table.astype(np.int32, copy=False) for name, table in tables.items()}
        return Order(self.layout.n, [(*extent, *first) for extent, *first in firsts], narrow)

    @cached_property
    def _cells(self) -> _Cells:
        blocks, sides = self.layout.blocks, self._sides
        row_base = np.cumsum([0, *(block.rows for block in blocks)])
        column_base = np.cumsum([0, *(block.columns for block in blocks)])

        narrow = np.int32 if self.layout.n <= np.iinfo(np.int32).max else np.int64

        def each(values: Sequence[Whole | int]) -> NDArray[np.signedinteger]:
            """One value per cell, from one per tensor or an array (row groups, column groups) per tensor."""
            shapes = [(len(rows.size), len(columns.size)) for rows, columns in sides]
            whole = [np.asarray(value, dtype=narrow) for value in values]
            return np.concatenate(
                [np.broadcast_to(v, shape).reshape(-1) for v, shape in zip(whole, shapes, strict=True)]
            )

        return _Cells(
            rows=np.concatenate([rows.order for rows, _ in sides]),
            columns=np.concatenate([columns.order for _, columns in sides]),
            first_row=each([base + rows.first[:, None] for base, (rows, _) in zip(row_base, sides, strict=False)]),
            first_column=each([base + columns.first for base, (_, columns) in zip(column_base, sides, strict=False)]),
            width=each([columns.size for _, columns in sides]),
            start=each([block.start for block in blocks]),
            stride=each([block.columns for block in blocks]),
        )


def _done(done: int, found: Found) -> Found:
    """What compiled code found; `IndexError` if it did not."""
    if not done:
        raise IndexError(OUTSIDE)
    return found


@dataclass(frozen=True, eq=False)
class _Cells:
    """For each cell: where its rows and columns begin in the lists of all, its width, its tensor's start and width."""

    rows: Whole
    columns: Whole
    first_row: NDArray[np.signedinteger]
    first_column: NDArray[np.signedinteger]
    width: NDArray[np.signedinteger]
    start: NDArray[np.signedinteger]
    stride: NDArray[np.signedinteger]
