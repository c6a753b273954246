"""Weighted sums of what clients sent, in model space where they sent models, exactly.

Whole models are averaged as such: Σ p_k w_k (+ the server's own w for weight that is missing), so a single
client's model comes back bit for bit. Increments are summed as increments, so nothing is lost to rounding
against w.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import fsum

import torch
from torch import Tensor

from efl.training.local_work import vector
from efl.wire import Dense, Payload

ROUNDING = 1e-9


class Aggregate:
    """What a round's updates come to: a new ``model``, or the ``delta`` from w, whichever is asked for.

    Args:
        w: The model.
        updates: What clients sent.
        weights: How much each counts.
        participation: The probability that a client takes part in a round.
        delta: What they come to, where it is more than their weighted sum.
    """

    def __init__(
        self,
        w: Tensor,
        updates: Sequence[Payload],
        weights: Sequence[float],
        participation: float = 1.0,
        delta: Tensor | None = None,
    ) -> None:
        self.w, self.updates, self.weights, self.participation = w, updates, weights, participation
        self._delta = delta

    def having(self, delta: Tensor) -> Aggregate:
        """The same updates, come to something else."""
        return Aggregate(self.w, self.updates, self.weights, self.participation, delta)

    @property
    def contributions(self) -> Iterator[tuple[Payload, float]]:
        """Each update and its weight."""
        return zip(self.updates, self.weights, strict=True)

    @cached_property
    def model(self) -> Tensor:
        """W + Σ weight_k · (model_k − w)."""
        return averaged_model(self.w, self.updates, self.weights) if self._delta is None else self.w + self._delta

    @cached_property
    def delta(self) -> Tensor:
        """Σ weight_k · (model_k − w)."""
        return averaged_increment(self.w, self.updates, self.weights) if self._delta is None else self._delta


def averaged_model(w: Tensor, updates: Sequence[Payload], weights: Sequence[float]) -> Tensor:
    """W + Σ weight_k · (model_k − w)."""
    models = [torch.from_numpy(update.values) for update in updates if isinstance(update, Dense)]
    if len(models) < len(updates):
        return w + averaged_increment(w, updates, weights)
    average = models[0] * weights[0]
    for model, weight in zip(models[1:], weights[1:], strict=True):
        average.add_(model, alpha=weight)
    missing = 1.0 - fsum(weights)
    return average.add_(w, alpha=missing) if abs(missing) > ROUNDING else average


def averaged_increment(w: Tensor, updates: Sequence[Payload], weights: Sequence[float]) -> Tensor:
    """Σ weight_k · (model_k − w)."""
    increment = torch.zeros_like(w)
    for update, weight in zip(updates, weights, strict=True):
        update.add_to(increment.numpy(), weight, w.numpy())
    return increment


def delta_of(update: Payload, w: Tensor) -> Tensor:
    """One update as a dense vector: model − w, or the increment itself."""
    return averaged_increment(w, [update], [1.0])


def weighted_sum(payloads: Sequence[Payload], weights: Sequence[float]) -> Tensor:
    """Σ weight_k · vector_k of vectors that are neither models nor changes of one."""
    return torch.stack([vector(payload) * weight for payload, weight in zip(payloads, weights, strict=True)]).sum(0)
