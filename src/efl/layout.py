"""How a flat vector is made of tensors: what both sides know before anything travels."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Block:
    """A tensor as a matrix: outputs are rows, everything else columns; what has one dimension is one row."""

    start: int
    rows: int
    columns: int

    @property
    def stop(self) -> int:
        """One past its last coordinate."""
        return self.start + self.rows * self.columns


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the flat vector: its name, its shape, and where it lies."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The shapes of the tensors, in the order they follow each other, and their names, where they have some.

    >>> [(block.start, block.rows, block.columns) for block in Layout(((2, 3, 4), (5,))).blocks]
    [(0, 2, 12), (24, 1, 5)]
    """

    shapes: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def flat(cls, n: int) -> Layout:
        """One tensor of one dimension."""
        return cls(((n,),))

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The tensors one by one."""
        blocks: list[Block] = []
        start = 0
        for shape in self.shapes:
            rows = shape[0] if len(shape) > 1 else 1
            block = Block(start, rows, prod(shape) // max(rows, 1))
            blocks.append(block)
            start = block.stop
        return tuple(blocks)

    @cached_property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The tensors by name."""
        named = zip(self.names, self.shapes, self.segments, strict=True)
        return tuple(TensorSpec(name, shape, *segment) for name, shape, segment in named)

    @cached_property
    def n(self) -> int:
        """The length of the vector."""
        return self.blocks[-1].stop if self.blocks else 0

    @cached_property
    def segments(self) -> list[tuple[int, int]]:
        """Where each tensor begins and ends."""
        return [(block.start, block.stop) for block in self.blocks]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each tensor begins."""
        return np.array([block.start for block in self.blocks], dtype=np.int64)

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """How many columns each tensor has."""
        return np.array([block.columns for block in self.blocks], dtype=np.int64)

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        """Where the rows of each tensor begin, in a list of the rows of all."""
        return np.array([rows.start for rows in self.row_slices], dtype=np.int64)

    @cached_property
    def first_columns(self) -> NDArray[np.int64]:
        """Where the columns of each tensor begin, in a list of the columns of all."""
        return np.array([columns.start for columns in self.column_slices], dtype=np.int64)

    @cached_property
    def row_starts(self) -> NDArray[np.int64]:
        """Where each row of each tensor begins."""
        return np.concatenate([block.start + block.columns * np.arange(block.rows) for block in self.blocks])

    @cached_property
    def row_slices(self) -> list[slice]:
        """The rows of each tensor, in a list of the rows of all."""
        return _slices([block.rows for block in self.blocks])

    @cached_property
    def column_slices(self) -> list[slice]:
        """The columns of each tensor, in a list of the columns of all."""
        return _slices([block.columns for block in self.blocks])

    def counts(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of the increasing positions lie in each tensor."""
        return np.diff(np.append(np.searchsorted(positions, self.starts), len(positions)))


def _slices(sizes: list[int]) -> list[slice]:
    return [slice(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes), strict=True)]
