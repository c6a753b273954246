"""ST, Algorithm 2 of the paper: keep the largest entries and round them to one magnitude.

For a cohort: every row of a (C, n) matrix is compressed by itself, tensor by tensor or as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from efl.wire import Ternary

Segments = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Sparsified:
    """ST of every row: the dense (C, n) matrix, and each row ready to travel."""

    dense: Tensor
    scales: Tensor
    counts: tuple[tuple[int, ...], ...]

    def row(self, row: int) -> Ternary:
        """One row as a payload."""
        values = self.dense[row].cpu().numpy()
        positions = np.flatnonzero(values)
        scales = self.scales[row].cpu().numpy()
        return Ternary(len(values), positions, values[positions] > 0, self.counts[row], scales)


def sparsify_ternary(matrix: Tensor, density: float, segments: Segments) -> Sparsified:
    """ST of each row of ``matrix`` (C, n), separately in every segment [start, stop) of the columns.

    >>> sparsify_ternary(torch.tensor([[3.0, -1.0, 0.5, -4.0]]), 0.5, [(0, 4)]).dense
    tensor([[ 3.5000,  0.0000,  0.0000, -3.5000]])
    """
    dense = torch.zeros_like(matrix)
    scales, counts = [], []
    for start, stop in segments:
        part = matrix[:, start:stop]
        magnitude = part.abs()
        kept = magnitude * _largest(magnitude, max(int((stop - start) * density), 1))
        count = (kept > 0).sum(1)
        scale = kept.sum(1) / count.clamp(min=1)
        dense[:, start:stop] = torch.sign(part) * (kept > 0) * scale.unsqueeze(1)
        scales.append(scale)
        counts.append(count)
    table = torch.stack(counts, dim=1).tolist()
    return Sparsified(dense, torch.stack(scales, dim=1), tuple(tuple(row) for row in table))


def _largest(magnitude: Tensor, count: int) -> Tensor:
    """A mask of the ``count`` largest entries of each row; as in Algorithm 2, ties at the threshold are all in."""
    width = magnitude.shape[1]
    if count >= width:
        return torch.ones_like(magnitude, dtype=torch.bool)
    values = magnitude.cpu().numpy()
    threshold = np.partition(values, width - count, axis=1)[:, width - count]  # torch.topk takes five times as long
    return magnitude >= torch.from_numpy(threshold).to(magnitude.device).unsqueeze(1)


def top_positions(values: Tensor, count: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """For each row of non-negative ``values``, the increasing positions of its ``count`` largest, zeros left out."""
    mask = (_largest(values, count) & (values > 0)).cpu().numpy()
    return [np.flatnonzero(row) for row in mask]
