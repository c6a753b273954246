"""ST, Algorithm 2 of the paper: keep the largest entries and round them to one magnitude.

For a cohort: every row of a (C, n) matrix is compressed by itself, tensor by tensor or as a whole.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.compression.codec import CODECS, Codec, Direction
from efl.algorithms.state import Part, RoundSettings
from efl.settings import Density
from efl.wire import Dense, Layout, Payload, Ternary

Positions = NDArray[np.int64]
Vector = NDArray[np.float32]

LONG = 4096  # entries from which on a look at a sample pays
STRIDE = 17  # every 17th entry is in the sample; a prime, so that it meets all columns of a layer


def sparsify_ternary(matrix: Tensor, density: float, layout: Layout, *, whole: bool = True) -> list[Ternary]:
    """ST of each row of ``matrix`` (C, n), over the ``whole`` row or separately in every tensor of the layout.

    >>> import torch
    >>> sent = sparsify_ternary(torch.tensor([[3.0, -1.0, 0.5, -4.0]]), 0.5, Layout.flat(4))[0]
    >>> sent.positions.tolist(), sent.values.tolist()
    ([0, 3], [3.5, -3.5])
    """
    segments = [(0, layout.n)] if whole else layout.segments
    return [_sparsified(row, density, layout, segments) for row in matrix.contiguous().numpy()]


def _sparsified(row: Vector, density: float, layout: Layout, segments: Sequence[tuple[int, int]]) -> Ternary:
    magnitude = np.abs(row)
    chosen = [a + largest(magnitude[a:b], max(int((b - a) * density), 1)) for a, b in segments]
    means = [magnitude[at].mean(dtype=np.float64) if len(at) else 0.0 for at in chosen]
    positions = np.concatenate(chosen)
    return Ternary(layout, positions, row[positions] > 0, np.array(means, np.float32))


def largest(magnitude: Vector, count: int) -> Positions:
    """The increasing positions of the ``count`` largest of non-negative numbers; zeros never, of equal ones the first.

    In long vectors a sample tells a threshold that surely, or nearly so, lies a little below the true one; only the
    few entries above it are sorted out. Where the sample misled, all entries are.

    >>> largest(np.float32([1, 0, 3, 1, 2]), 3).tolist()
    [0, 2, 4]
    """
    if count >= len(magnitude):
        return np.flatnonzero(magnitude)
    if len(magnitude) >= LONG:
        sample = magnitude[::STRIDE]
        expected = count / STRIDE
        rank = int(expected + 4 * expected**0.5) + 4
        if 2 * rank < len(sample):
            near = np.flatnonzero(magnitude >= np.partition(sample, -rank)[-rank])
            if count <= len(near) < len(magnitude):
                return near[_partitioned(magnitude[near], count)]
    return _partitioned(magnitude, count)


def _partitioned(magnitude: Vector, count: int) -> Positions:
    """`largest` by NumPy's partition, which takes a quarter of the time of torch.topk."""
    threshold = max(np.partition(magnitude, -count)[-count], np.finfo(np.float32).tiny)
    chosen = np.flatnonzero(magnitude >= threshold)
    excess = len(chosen) - count
    if excess > 0:
        tied = np.flatnonzero(magnitude[chosen] == threshold)
        chosen = np.delete(chosen, tied[-excess:])
    return chosen


@CODECS.register("sparse_ternary")
class SparseTernary(Codec):
    """ST in each direction; density 1 sends whole models.

    Attributes:
        up: The share of entries an upload keeps.
        down: The share of entries a broadcast keeps.
        scope: ST over the ``whole`` vector, or for each ``tensor`` by itself.
    """

    up: Density = 0.01
    down: Density = 0.01
    scope: Literal["tensor", "whole"] = "whole"

    @property
    def part(self) -> Part:
        """A ternary tensor, or a model."""
        return Part(Ternary if self.compresses("up") else Dense, kind="update", limit="update")

    def compresses(self, direction: Direction) -> bool:
        """Where fewer than all entries travel."""
        return self._density(direction) < 1

    def compress(self, deltas: Tensor, direction: Direction, settings: RoundSettings) -> Sequence[Payload]:
        """ST of every row."""
        whole = self.scope == "whole"
        return sparsify_ternary(deltas, self._density(direction), settings.layout, whole=whole)

    def _density(self, direction: Direction) -> float:
        return self.up if direction == "up" else self.down
