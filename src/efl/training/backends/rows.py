"""A cohort of models as a matrix: C copies trained side by side.

Algorithms work on ``W`` (C, n) and the gradient ``G`` (C, n), the network on views of the same memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efl.models.layout import split
from efl.training.backends.chain import LinearPass
from efl.training.backends.linear_gradients import Gradients

if TYPE_CHECKING:
    from efl.models.flat import FlatModel

Named = dict[str, Tensor]

_identities = itertools.count()


class Rows:
    """C models as a matrix: ``W`` and ``G`` (C, n), ``buffers`` (C, b)."""

    def __init__(self, model: FlatModel, w: Tensor, buffers: Tensor, count: int, *, batched: bool) -> None:
        self.model = model
        self.W = w.to(model.device).expand(count, -1).clone()
        self.buffers = buffers.to(model.device).expand(count, -1).clone()
        self.batched = batched and model.chain is not None
        self.compiled = model.compiled if self.batched else None
        self._parameters: dict[int, Named] = {}
        self._gradients: dict[int, Named] = {}
        self._identity = next(_identities)
        if not self.batched:
            self._row_views = [split(row, model.layout) for row in self.W]
            self._buffer_views = [split(row, model.buffer_layout) for row in self.buffers]

    @cached_property
    def G(self) -> Tensor:
        """Where gradients go, if anybody asks for them."""
        return torch.zeros_like(self.W)

    @cached_property
    def _gradient_views(self) -> list[list[Tensor]]:
        return [split(row, self.model.layout) for row in self.G]

    def targets(self, y: Tensor) -> Tensor:
        """Labels (…, C, B) of many steps in the form that `gradient` takes them quickest."""
        if not self.batched or self.model.chain is None or self.compiled is not None:
            return y
        return _chosen(y, self.model.chain.outputs, 1 / y.shape[-1])

    def gradient(self, active: int, x: Tensor, y: Tensor) -> Tensor:
        """Fill ``G`` for the first ``active`` rows with the gradient on x (active, B, …); return their losses."""
        if self.compiled is not None:
            return self.compiled.gradient(self.W[:active], x, y, self.G[:active])
        if self.batched:
            return self._chain_gradient(active, x, y)
        return torch.stack([self._row_gradients(row, x[row], y[row], self._into_g) for row in range(active)])

    def descend(self, active: int, x: Tensor, y: Tensor, eta: float, squares: Tensor | None = None) -> Tensor:
        """Move the first ``active`` rows of ``W`` by −η times that gradient; return their losses.

        Weights of linear layers take it up as it is multiplied out, so for them ``G`` is neither written nor read,
        which saves a third of a step where it does not fit into the cache. Last bits differ from those of `gradient`
        and a subtraction. The gradient's squares are added to ``squares``.
        """
        if self.compiled is not None:
            w, watched = self.W[:active], None if squares is None else squares[:active]
            return self.compiled.gradient(w, x, y, w, -eta, onto=True, squares=watched)
        if squares is not None:
            losses = self.gradient(active, x, y)
            self.W[:active].sub_(self.G[:active], alpha=eta)
            squares[:active].addcmul_(self.G[:active], self.G[:active])
            return losses
        if self.batched:
            return self._chain_descend(active, x, y, eta)
        move = partial(self._onto_w, eta=eta)
        return torch.stack([self._row_gradients(row, x[row], y[row], move) for row in range(active)])

    def use(self, row: int, *, training: bool) -> nn.Module:
        """The module, computing on this row."""
        model, address = self.model, (self._identity, row)
        if model._bound != address:
            model.place(self._row_views[row], self._buffer_views[row])
            model._bound = address
        if model.module.training != training:
            model.module.train(training)
        return model.module

    def parameters(self, active: int) -> Named:
        """The first ``active`` rows of ``W`` as tensors (active, …), by name."""
        if active not in self._parameters:
            self._parameters[active] = self._named(self.W[:active])
        return self._parameters[active]

    def gradients(self, active: int) -> Named:
        """The first ``active`` rows of ``G`` as tensors (active, …), by name."""
        if active not in self._gradients:
            self._gradients[active] = self._named(self.G[:active])
        return self._gradients[active]

    def _named(self, matrix: Tensor) -> Named:
        layout = self.model.layout
        return dict(zip((spec.name for spec in layout), split(matrix, layout), strict=True))

    def some(self, rows: Tensor) -> Named:
        """Copies of these rows of ``W`` as tensors (C, …), by name."""
        return self._named(self.W[rows])

    def through_chain(
        self, parameters: Named, x: Tensor, y: Tensor, share: float
    ) -> tuple[Tensor, Iterator[LinearPass]]:
        """Run some rows as one: ``share`` × the sum of each row's losses (C,), and the linear layers, last first.

        Derivatives are those of these sums. ``y`` are labels, or what `targets` made of them for the same share.
        """
        assert self.model.chain is not None
        passed = self.model.chain.forward(parameters, x)
        logarithms = passed[-1].log_softmax(1)
        chosen = y if y.is_floating_point() else _chosen(y, logarithms.shape[1], share)
        delta = torch.ops.aten._log_softmax_backward_data(chosen, logarithms, 1, torch.float32)
        losses = (logarithms * chosen).sum((1, 2))
        return losses, self.model.chain.backward(parameters, passed, delta)

    def _row_gradients(self, row: int, x: Tensor, y: Tensor, use: Callable[[int, Gradients], None]) -> Tensor:
        module = self.use(row, training=True)
        with Gradients(self.model.parameters) as gradients:
            outputs = module(x)
        loss = sample_losses(outputs, y).mean()
        gradients.backward(loss)
        use(row, gradients)
        self.model.collect_buffers(self._buffer_views[row])
        return loss.detach()

    def _into_g(self, row: int, gradients: Gradients) -> None:
        gradients.into(self._gradient_views[row])

    def _onto_w(self, row: int, gradients: Gradients, eta: float) -> None:
        gradients.onto(self._row_views[row], eta)

    def _chain_gradient(self, active: int, x: Tensor, y: Tensor) -> Tensor:
        gradients = self.gradients(active)
        losses, layers = self.through_chain(self.parameters(active), x, y, 1 / x.shape[1])
        for layer in layers:
            torch.bmm(layer.delta.mT, layer.inputs, out=gradients[layer.weight])
            if layer.bias is not None:
                torch.sum(layer.delta, 1, out=gradients[layer.bias])
        return losses

    def _chain_descend(self, active: int, x: Tensor, y: Tensor, eta: float) -> Tensor:
        parameters = self.parameters(active)
        losses, layers = self.through_chain(parameters, x, y, 1 / x.shape[1])
        for layer in layers:
            parameters[layer.weight].baddbmm_(layer.delta.mT, layer.inputs, alpha=-eta)
            if layer.bias is not None:
                parameters[layer.bias].sub_(layer.delta.sum(1), alpha=eta)
        return losses


def _chosen(y: Tensor, classes: int, share: float) -> Tensor:
    """−share at the label, zero elsewhere (…, classes, B): the loss's derivative by logarithms of probabilities."""
    chosen = torch.zeros(*y.shape[:-1], classes, y.shape[-1], device=y.device)
    return chosen.scatter_(-2, y.unsqueeze(-2), -share)


def sample_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of every sample, f_k before the mean; of a sequence, the mean over its positions."""
    if y.dim() == 1:
        return F.cross_entropy(outputs, y, reduction="none")
    return F.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)
