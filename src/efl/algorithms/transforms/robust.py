"""Rules by which a few wrong updates cannot steer the mean: each takes its place, and counts clients alike.

What clients' shares are of the objective these rules do not know; the sum of the weights, which is one for most
algorithms, scales the whole. They see updates as they were sent, one round at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum
from typing import Annotated

from pydantic import Field
from torch import Tensor

from efl.algorithms.transform import TRANSFORMS, Reduce, Transform

Hostile = Annotated[float, Field(ge=0, lt=0.5)]
CLOSE = 1e-6  # of the median distance, below which the geometric median takes points for one


@TRANSFORMS.register("coordinate_median")
class CoordinateMedian(Transform):
    """The median of every coordinate over the clients, instead of a weighted mean (Yin et al. 2018).

    Every client counts alike; the sum of the weights, which is one for most algorithms, scales the whole.
    """

    @property
    def reduce(self) -> Reduce | None:
        """In place of the weighted sum."""
        return coordinate_median


@TRANSFORMS.register("trimmed_mean")
class TrimmedMean(Transform):
    """The mean of every coordinate without its largest and smallest values (Yin et al. 2018).

    Attributes:
        hostile: The share of clients that may be hostile; as many are left out on either side.
    """

    hostile: Hostile = 0.2

    @property
    def reduce(self) -> Reduce | None:
        """In place of the weighted sum."""
        return lambda deltas, weights: trimmed_mean(deltas, ceil(self.hostile * len(deltas)))


@TRANSFORMS.register("geometric_median")
class GeometricMedian(Transform):
    """The point whose distances from the updates have the smallest sum, by Weiszfeld's steps (Pillutla et al. 2022).

    Attributes:
        steps: How many.
    """

    steps: Annotated[int, Field(ge=1)] = 8

    @property
    def reduce(self) -> Reduce | None:
        """In place of the weighted sum."""
        return lambda deltas, weights: geometric_median(deltas, self.steps)


@TRANSFORMS.register("multi_krum")
class MultiKrum(Transform):
    """The mean of the updates closest to their neighbours (Blanchard et al. 2017).

    Attributes:
        hostile: The share f of clients that may be hostile: K − f − 2 neighbours count, and K − f updates are left.
    """

    hostile: Hostile = 0.2

    @property
    def reduce(self) -> Reduce | None:
        """In place of the weighted sum."""
        return lambda deltas, weights: multi_krum(deltas, ceil(self.hostile * len(deltas)))


def coordinate_median(deltas: Tensor, weights: Sequence[float]) -> Tensor:
    """Σ weights times the median of each column of ``deltas`` (K, n); of two in the middle, their mean.

    >>> import torch
    >>> coordinate_median(torch.tensor([[1.0, 9.0], [2.0, -9.0], [30.0, 1.0]]), [0.5, 0.25, 0.25])
    tensor([2., 1.])
    """
    ordered, count = deltas.sort(dim=0).values, len(deltas)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return middle * fsum(weights)


def trimmed_mean(deltas: Tensor, left_out: int) -> Tensor:
    """The mean of each column without its ``left_out`` largest and smallest; of the middle if nothing is left.

    >>> import torch
    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [4.0], [90.0]]), 1)
    tensor([3.])
    """
    left_out = min(left_out, (len(deltas) - 1) // 2)
    return deltas.sort(dim=0).values[left_out : len(deltas) - left_out].mean(0)


def geometric_median(deltas: Tensor, steps: int) -> Tensor:
    """Weiszfeld's steps from the median of every coordinate, which is near.

    >>> import torch
    >>> geometric_median(torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), 3)
    tensor([0., 1.])
    """
    point = coordinate_median(deltas, [1.0])
    for _ in range(steps):
        distances = (deltas - point).norm(dim=1)
        nearness = 1 / distances.clamp(min=max(CLOSE * float(distances.median()), 1e-30))
        point = (nearness / nearness.sum()) @ deltas
    return point


def multi_krum(deltas: Tensor, hostile: int) -> Tensor:
    """The mean of the K − f rows whose K − f − 2 nearest others are nearest.

    >>> import torch
    >>> multi_krum(torch.tensor([[0.0], [1.0], [2.0], [50.0]]), 1)
    tensor([1.])
    """
    count = len(deltas)
    squares = squared_distances(deltas)
    neighbours = max(1, count - hostile - 2)
    scores = squares.sort(dim=1).values[:, 1 : 1 + neighbours].sum(1)  # the nearest is the row itself
    return deltas[scores.argsort(stable=True)[: max(1, count - hostile)]].mean(0)


def squared_distances(deltas: Tensor) -> Tensor:
    """Of every row from every other (K, K)."""
    long = deltas.double()
    products = long @ long.T
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp_(min=0).fill_diagonal_(0.0)
