"""Reductions that a few wrong updates cannot steer."""

from collections.abc import Sequence
from math import fsum

from torch import Tensor

from efl.algorithms.transform import TRANSFORMS, Reduce, Transform


@TRANSFORMS.register("coordinate_median")
class CoordinateMedian(Transform):
    """The median of every coordinate over the clients, instead of a weighted mean (Yin et al. 2018).

    Every client counts alike; the sum of the weights, which is one for most algorithms, scales the whole.
    """

    @property
    def reduce(self) -> Reduce | None:
        """In place of the weighted sum."""
        return coordinate_median


def coordinate_median(deltas: Tensor, weights: Sequence[float]) -> Tensor:
    """Σ weights times the median of each column of ``deltas`` (K, n); of two in the middle, their mean.

    >>> import torch
    >>> coordinate_median(torch.tensor([[1.0, 9.0], [2.0, -9.0], [30.0, 1.0]]), [0.5, 0.25, 0.25])
    tensor([2., 1.])
    """
    ordered, count = deltas.sort(dim=0).values, len(deltas)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return middle * fsum(weights)
