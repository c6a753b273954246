"""A cohort of models as a matrix: C copies trained side by side.

Algorithms work on ``W`` (C, n) and the gradient ``G`` (C, n), the network on views of the same memory. How gradients
are computed is up to the subclass; a row's numbers never depend on the other rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from efl.models import FlatModel
from efl.training.tasks.base import Task
from efl.training.tasks.objective import PLAIN_TASK


class Rows(ABC):
    """C models as a matrix: ``W`` and ``G`` (C, n), ``buffers`` (C, b).

    ``batched`` says whether rows share matrix operations, ``task`` what the loss is.
    """

    batched = False

    def __init__(
        self, model: FlatModel, w: Tensor, count: int, buffers: Tensor | None = None, task: Task = PLAIN_TASK
    ) -> None:
        self.model, self.task = model, task
        self.W = w.to(model.device).expand(count, -1).clone()
        self.buffers = (model.buffers if buffers is None else buffers).to(model.device).expand(count, -1).clone()

    @abstractmethod
    def at(self, w: Tensor, count: int) -> Self:
        """``count`` more models of the same kind, all at ``w``."""

    @cached_property
    def G(self) -> Tensor:
        """Where gradients go, once somebody asks for them."""
        return torch.zeros_like(self.W)

    def targets(self, y: Tensor) -> Tensor:
        """Labels (…, C, B) of many steps in the form that `gradient` takes them quickest."""
        return y

    @abstractmethod
    def gradient(self, active: int, x: Any, y: Tensor) -> Tensor:
        """Fill ``G`` for the first ``active`` rows with the gradient on x (active, B, …); return their losses."""

    def descend(self, active: int, x: Any, y: Tensor, eta: float, squares: Tensor | None = None) -> Tensor:
        """Move the first ``active`` rows of ``W`` by −η times that gradient; return their losses.

        Subclasses may do so without writing ``G``, in which case last bits differ from those of `gradient` and a
        subtraction. The gradient's squares are added to ``squares``.
        """
        losses = self.gradient(active, x, y)
        self.W[:active].sub_(self.G[:active], alpha=eta)
        if squares is not None:
            squares[:active].addcmul_(self.G[:active], self.G[:active])
        return losses

    @abstractmethod
    def squared_gradients(self, x: Any, y: Tensor, weights: Tensor) -> Tensor:
        """The squares of every sample's gradient at ``W``, summed by ``weights`` (C, S), from samples x (C, S, …)."""

    @abstractmethod
    def outputs(self, x: Any, weights: Tensor) -> Tensor:
        """The models' outputs for samples x (C, S, …) that have a positive weight, in evaluation mode."""
