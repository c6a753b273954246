"""What is done to updates before a robust rule, and a rule that needs the last round's outcome.

The server applies a chain in reverse, so mixing stands after the rule: ``chain(EFL(), TrimmedMean(), Bucketing())``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from efl.algorithms.components.admission import Increment
from efl.algorithms.components.reduction import delta_of
from efl.algorithms.state import RoundSettings, ServerState, Update
from efl.algorithms.transform import TRANSFORMS, Transform
from efl.algorithms.transforms.robust import Hostile, squared_distances
from efl.rng import Purpose, stream
from efl.settings import Positive

CENTRE = "clipping_centre"


@TRANSFORMS.register("nearest_neighbour_mixing")
class NearestNeighbourMixing(Transform):
    """Every update becomes the mean of its K − f nearest, itself included (Allouah et al. 2023).

    Attributes:
        hostile: The share of clients that may be hostile, f of K.
    """

    hostile: Hostile = 0.2

    def admit(
        self, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Sequence[Update], ServerState]:
        """Each update mixed with its neighbours."""
        if not updates:
            return updates, server
        deltas = _stacked(updates, server.w)
        return _counting_as(updates, mixed(deltas, ceil(self.hostile * len(deltas)))), server


@TRANSFORMS.register("bucketing")
class Bucketing(Transform):
    """Updates are dealt at random into buckets, and each counts as its bucket's mean (Karimireddy et al. 2022).

    Attributes:
        size: How many updates a bucket has.
        seed: Of the dealing.
    """

    size: Annotated[int, Field(ge=1)] = 2
    seed: int = 0

    def admit(
        self, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Sequence[Update], ServerState]:
        """Each update as its bucket's mean."""
        if not updates:
            return updates, server
        dealt = stream(self.seed, Purpose.HOSTILE, settings.round).permutation(len(updates))
        return _counting_as(updates, bucketed(_stacked(updates, server.w), dealt, self.size)), server


@TRANSFORMS.register("centred_clipping")
class CentredClipping(Transform):
    """Updates may differ from the last round's outcome by so much and no more (Karimireddy et al. 2021).

    Attributes:
        radius: By how much; None for the median of how much they do.
        steps: How often the centre is moved to the mean of what is left, and the rest clipped again.
    """

    radius: Positive | None = None
    steps: Annotated[int, Field(ge=1)] = 1

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """The centre is no change at all."""
        return {CENTRE: torch.zeros_like(w)}

    def admit(
        self, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Sequence[Update], ServerState]:
        """Each update, clipped; the centre moves to their mean."""
        if not updates:
            return updates, server
        deltas, centre = _stacked(updates, server.w), server.tensors[CENTRE]
        for _ in range(self.steps):
            rows = clipped_around(deltas, centre, self.radius)
            centre = rows.mean(0)
        return _counting_as(updates, rows), server.having(**{CENTRE: centre})


def mixed(deltas: Tensor, hostile: int) -> Tensor:
    """Every row as the mean of its K − f nearest, itself included.

    >>> mixed(torch.tensor([[0.0], [2.0], [10.0]]), 1)
    tensor([[1.],
            [1.],
            [6.]])
    """
    nearest = squared_distances(deltas).argsort(dim=1, stable=True)[:, : max(1, len(deltas) - hostile)]
    return deltas[nearest].mean(1)


def bucketed(deltas: Tensor, dealt: np.ndarray[tuple[int], np.dtype[np.int64]], size: int) -> Tensor:
    """Every row as the mean of its bucket; ``dealt`` is the order in which rows go into buckets of ``size``.

    >>> bucketed(torch.tensor([[1.0], [5.0], [3.0]]), np.array([0, 2, 1]), 2)
    tensor([[2.],
            [5.],
            [2.]])
    """
    rows = torch.empty_like(deltas)
    for first in range(0, len(deltas), size):
        bucket = torch.from_numpy(dealt[first : first + size].astype(np.int64))
        rows[bucket] = deltas[bucket].mean(0)
    return rows


def clipped_around(deltas: Tensor, centre: Tensor, radius: float | None) -> Tensor:
    """Every row brought within the radius of the centre; None for the median of the rows' distances.

    >>> clipped_around(torch.tensor([[0.0, 3.0], [0.0, 9.0]]), torch.tensor([0.0, 1.0]), 2.0)
    tensor([[0., 3.],
            [0., 3.]])
    """
    apart = deltas - centre
    distances = apart.norm(dim=1, keepdim=True)
    bound = float(distances.median()) if radius is None else radius
    factors: Tensor = bound / distances.clamp(min=max(bound, 1e-30))
    return centre + apart * factors


def _stacked(updates: Sequence[Update], w: Tensor) -> Tensor:
    return torch.stack([delta_of(update.delta, w) for update in updates])


def _counting_as(updates: Sequence[Update], rows: Tensor) -> list[Update]:
    pairs = zip(updates, rows.numpy(), strict=True)
    return [replace(update, counts_as=Increment(np.ascontiguousarray(row))) for update, row in pairs]
