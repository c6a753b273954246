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
from efl.training.optimisers import Move, Optimiser
from efl.training.tasks.base import Task
from efl.training.tasks.objective import PLAIN_TASK


class Rows(ABC):
    """C models as a matrix: ``W`` and ``G`` (C, n), ``buffers`` (C, b).

    A row of ``W`` begins one of ``whole``; what follows is ``personal`` (C, p), if something stays with each client.
    ``batched`` says whether rows share matrix operations, ``task`` what the loss is.
    """

    batched = False

    def __init__(
        self, model: FlatModel, w: Tensor, count: int, buffers: Tensor | None = None, task: Task = PLAIN_TASK
    ) -> None:
        self.model, self.task = model, task
        self.whole = model.whole(w).to(model.device).expand(count, -1).clone()
        self.W, self.personal = self.whole[:, : len(w)], self.whole[:, len(w) :]
        self.buffers = (model.buffers if buffers is None else buffers).to(model.device).expand(count, -1).clone()

    @abstractmethod
    def at(self, w: Tensor, count: int) -> Self:
        """``count`` more models of the same kind, all at ``w``."""

    @cached_property
    def G(self) -> Tensor:
        """Where gradients go, once somebody asks for them."""
        return self.trained_gradients[:, : self.W.shape[1]] if self.personal.shape[1] else torch.zeros_like(self.W)

    @cached_property
    def trained_gradients(self) -> Tensor:
        """``G``, and beside it the gradients by personal parameters, if there are some."""
        if not self.personal.shape[1]:
            return self.G
        return self.W.new_zeros(len(self.W), self.model.trained_layout.n)

    @property
    def personal_parameters(self) -> Tensor:
        """What of ``personal`` is trained; the rest are buffers."""
        return self.personal[:, : self.model.personal_parameters.n] if self.personal.shape[1] else self.personal

    def personal_move(self, optimiser: Optimiser, eta: float) -> Move | None:
        """What moves the personal parameters, if there are some; the optimiser keeps for them what it keeps."""
        own = self.personal_parameters
        return optimiser.start(own, eta, self.model.personal_parameters) if own.shape[1] else None

    def move_personal(self, active: int, eta: float, move: Move | None = None) -> None:
        """Take the step that the last gradient calls for with the personal parameters of the first rows."""
        if not self.personal_parameters.shape[1]:
            return
        own, gradient = self.personal_parameters[:active], self.trained_gradients[:active, self.W.shape[1] :]
        if move is None:
            own.sub_(gradient, alpha=eta)
        else:
            move(own, gradient)

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
