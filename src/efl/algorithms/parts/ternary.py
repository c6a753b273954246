"""ST, Algorithm 2 of the paper: keep the largest entries and round them to one magnitude.

For a cohort: every row of a (C, n) matrix is compressed by itself, tensor by tensor or as a whole.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from efl.wire import Ternary

Segments = Sequence[tuple[int, int]]
Matrix = NDArray[np.float32]
LONG_ROW = 16_000


def sparsify_ternary(matrix: Tensor, density: float, segments: Segments) -> list[Ternary]:
    """ST of each row of ``matrix`` (C, n), separately in every segment [start, stop) of the columns.

    >>> import torch
    >>> sent = sparsify_ternary(torch.tensor([[3.0, -1.0, 0.5, -4.0]]), 0.5, [(0, 4)])[0]
    >>> sent.positions.tolist(), sent.values.tolist()
    ([0, 3], [3.5, -3.5])
    """
    values = matrix.contiguous().numpy()
    rows, n = values.shape
    kept = np.concatenate(
        [_largest(np.abs(values[:, a:b]), max(int((b - a) * density), 1)) for a, b in segments], axis=1
    )
    flat = np.flatnonzero(kept)  # all rows in one go; row r has the entries from r·n on
    entries = values.reshape(-1)[flat]
    starts = np.arange(rows)[:, None] * n + np.array([a for a, _ in segments])
    cuts = np.append(np.searchsorted(flat, starts.reshape(-1)), len(flat))
    counts, scales = _means(np.abs(entries), cuts)
    sent: list[Ternary] = []
    for row in range(rows):
        own = slice(row * len(segments), (row + 1) * len(segments))
        part = slice(cuts[own.start], cuts[own.stop])
        sent.append(Ternary(n, flat[part] - row * n, entries[part] > 0, tuple(counts[own].tolist()), scales[own]))
    return sent


def subtract(matrix: Tensor, sent: Sequence[Ternary]) -> Tensor:
    """Take ``sent`` out of the rows, in place; what is left is the residual."""
    for row, update in zip(matrix.numpy(), sent, strict=True):
        row[update.positions] -= update.values
    return matrix


def top_positions(values: Tensor, count: int) -> list[NDArray[np.int64]]:
    """For each row of non-negative ``values``, the increasing positions of about its ``count`` largest, no zeros.

    In long rows the threshold is that of every 17th entry (a prime, so that it meets all columns of a layer): where the
    cut falls exactly is of no consequence here.
    """
    rows = values.numpy()
    if count >= rows.shape[1]:
        return [np.flatnonzero(row) for row in rows]
    looked_at = rows[:, ::17] if rows.shape[1] >= LONG_ROW else rows
    threshold = _kth_largest(looked_at, max(1, count * looked_at.shape[1] // rows.shape[1]))
    return [np.flatnonzero(row >= least) for row, least in zip(rows, threshold, strict=True)]


def _largest(magnitude: Matrix, count: int) -> NDArray[np.bool_]:
    """A mask of the ``count`` largest entries of each row, zeros never; of ties at the threshold the first are in."""
    if count >= magnitude.shape[1]:
        return magnitude > 0
    threshold = _kth_largest(magnitude, count)
    mask: NDArray[np.bool_] = magnitude >= threshold[:, None]
    excess = np.count_nonzero(mask, axis=1) - count
    for row in np.flatnonzero(excess > 0):
        tied = np.flatnonzero(magnitude[row] == threshold[row])
        mask[row, tied[len(tied) - excess[row] :]] = False
    return mask


def _kth_largest(magnitude: Matrix, count: int) -> NDArray[np.float32]:
    """The threshold of each row, above zero. NumPy's partition takes a quarter of the time of torch.topk."""
    last = magnitude.shape[1] - count
    return np.maximum(np.partition(magnitude, last, axis=1)[:, last], np.finfo(np.float32).tiny)


def _means(magnitudes: NDArray[np.float32], cuts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """How many magnitudes lie between neighbouring cuts, and their mean; 0 where there are none."""
    counts = np.diff(cuts)
    sums = np.add.reduceat(np.append(magnitudes, np.float32(0)), cuts[:-1])
    return counts, np.where(counts > 0, sums / np.maximum(counts, 1), 0).astype(np.float32)
