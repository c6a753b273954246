"""Any network, one row at a time, by PyTorch's own operations and autograd."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from efl.models import FlatModel
from efl.models.outputs import answer, tensor_of
from efl.models.vectors import split
from efl.training.backends.linear_gradients import Gradients
from efl.training.backends.rows import Rows
from efl.training.inputs import in_rows
from efl.training.sample_gradients import squared_gradients
from efl.training.tasks.base import Task
from efl.training.tasks.objective import PLAIN_TASK

_identities = itertools.count()


class EagerRows(Rows):
    """Rows that the module computes one after the other; linear layers take their gradient as it is multiplied out."""

    def __init__(
        self, model: FlatModel, w: Tensor, count: int, buffers: Tensor | None = None, task: Task = PLAIN_TASK
    ) -> None:
        super().__init__(model, w, count, buffers, task)
        self._identity = next(_identities)
        views = [model.views(row, buffers) for row, buffers in zip(self.whole, self.buffers, strict=True)]
        self._row_views, self._buffer_views = [own for own, _ in views], [own for _, own in views]

    def at(self, w: Tensor, count: int) -> EagerRows:
        """``count`` more models of the same kind, all at ``w``."""
        rows = EagerRows(self.model, w, count, task=self.task)
        rows.personal.copy_(self.personal[:count])
        return rows

    @cached_property
    def _gradient_views(self) -> list[list[Tensor]]:
        return [split(row, self.model.trained_layout) for row in self.trained_gradients]

    def gradient(self, active: int, x: Any, y: Tensor) -> Tensor:
        """Fill ``G`` for the first ``active`` rows with the gradient on x (active, B, …); return their losses."""
        return torch.stack(list(map(self._backward, range(active), in_rows(x), y, repeat(self._into_g))))

    def descend(self, active: int, x: Any, y: Tensor, eta: float, squares: Tensor | None = None) -> Tensor:
        """Move rows by −η times the gradient, which saves a third of a step where ``G`` does not fit into the cache."""
        use = partial(self._onto_w, eta=eta) if squares is None else self._into_g
        losses = torch.stack(list(map(self._backward, range(active), in_rows(x), y, repeat(use))))
        if squares is not None:
            self.W[:active].sub_(self.G[:active], alpha=eta)
            self.move_personal(active, eta)
            squares[:active].addcmul_(self.G[:active], self.G[:active])
        return losses

    def squared_gradients(self, x: Any, y: Tensor, weights: Tensor) -> Tensor:
        """Layer by layer where the network allows it, else from the gradients of single samples."""
        result = torch.zeros_like(self.W[: len(y)])
        for row, samples in enumerate(in_rows(x)):
            module = self.use(row, training=False)
            squares = squared_gradients(self.model, module, self.task, samples, y[row], weights[row])
            result[row] = squares[: self.model.n]
        return result

    def outputs(self, x: Any, weights: Tensor) -> Tensor:
        """The models' outputs for samples x (C, S, …)."""
        answers = (answer(self.use(row, training=False), samples) for row, samples in enumerate(in_rows(x)))
        return torch.stack([tensor_of(outputs) for outputs in answers])

    def use(self, row: int, *, training: bool) -> nn.Module:
        """The module, computing on this row."""
        model, address = self.model, (self._identity, row)
        if model.bound != address:
            model.place(self._row_views[row], self._buffer_views[row])
            model.bound = address
        if model.module.training != training:
            model.train(training)
        return model.module

    def _backward(self, row: int, x: Any, y: Tensor, use: Callable[[int, Gradients], None]) -> Tensor:
        module = self.use(row, training=True)
        with Gradients(self.model.parameters) as gradients:
            outputs = answer(module, x)
        loss = self.task.loss(self.task.read(outputs), y)
        gradients.backward(loss)
        use(row, gradients)
        self.model.collect_buffers(self._buffer_views[row])
        return loss.detach()

    def _into_g(self, row: int, gradients: Gradients) -> None:
        gradients.into(self._gradient_views[row])

    def _onto_w(self, row: int, gradients: Gradients, eta: float) -> None:
        gradients.onto(self._row_views[row], eta)
