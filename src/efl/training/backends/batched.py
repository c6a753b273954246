"""Chains of linear layers, all rows as one batched product a layer, differentiated without autograd."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from efl.models import FlatModel
from efl.models.vectors import split
from efl.training.backends.chain import Chain, LinearPass
from efl.training.backends.rows import Rows
from efl.training.tasks.base import Task
from efl.training.tasks.objective import PLAIN_TASK

Named = dict[str, Tensor]


class BatchedRows(Rows):
    """Rows that share matrix operations."""

    batched = True

    def __init__(
        self,
        model: FlatModel,
        chain: Chain,
        w: Tensor,
        count: int,
        buffers: Tensor | None = None,
        task: Task = PLAIN_TASK,
    ) -> None:
        super().__init__(model, w, count, buffers, task)
        self.chain = chain
        self._parameters: dict[int, Named] = {}
        self._gradients: dict[int, Named] = {}

    def at(self, w: Tensor, count: int) -> BatchedRows:
        """``count`` more models of the same kind, all at ``w``."""
        return BatchedRows(self.model, self.chain, w, count, task=self.task)

    def targets(self, y: Tensor) -> Tensor:
        """Labels (…, C, B) as derivatives by logarithms of probabilities, where that is what the loss is made of."""
        if not self.task.plain:
            return y
        return _chosen(y, self.chain.outputs, 1 / y.shape[-1])

    def gradient(self, active: int, x: Tensor, y: Tensor) -> Tensor:
        """Fill ``G`` for the first ``active`` rows with the gradient on x (active, B, …); return their losses."""
        if active not in self._gradients:
            self._gradients[active] = self._named(self.G[:active])
        gradients = self._gradients[active]
        losses, layers = self._through_chain(self._rows(active), x, y, 1 / x.shape[1])
        for layer in layers:
            torch.bmm(layer.delta.mT, layer.inputs, out=gradients[layer.weight])
            if layer.bias is not None:
                torch.sum(layer.delta, 1, out=gradients[layer.bias])
        return losses

    def descend(self, active: int, x: Tensor, y: Tensor, eta: float, squares: Tensor | None = None) -> Tensor:
        """Move rows by −η times the gradient as it is multiplied out; ``G`` is neither written nor read."""
        if squares is not None:
            return super().descend(active, x, y, eta, squares)
        parameters = self._rows(active)
        losses, layers = self._through_chain(parameters, x, y, 1 / x.shape[1])
        for layer in layers:
            parameters[layer.weight].baddbmm_(layer.delta.mT, layer.inputs, alpha=-eta)
            if layer.bias is not None:
                parameters[layer.bias].sub_(layer.delta.sum(1), alpha=eta)
        return losses

    def squared_gradients(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Σ over samples of (δ²)ᵀ(x²), layer by layer."""
        result = torch.zeros_like(self.W[: len(x)])
        for rows, filled in rows_by_count(weights):
            parameters, share = self._named(self.W[rows]), weights[rows, :filled].unsqueeze(-1)
            _, layers = self._through_chain(parameters, x[rows, :filled], y[rows, :filled], None)
            squares: dict[str | None, Tensor] = {}
            for layer in layers:
                weighted = layer.delta.square() * share
                squares[layer.weight] = torch.bmm(weighted.mT, layer.inputs.square())
                squares[layer.bias] = weighted.sum(1)
            pieces = [squares[name].reshape(len(rows), -1) for name in self.model.layout.names]
            result[rows] = torch.cat(pieces, dim=1)
        return result

    def outputs(self, x: Tensor, weights: Tensor) -> Tensor:
        """The models' outputs for samples that have a positive weight; zero for the others."""
        outputs = torch.zeros(*x.shape[:2], self.chain.outputs, device=x.device)
        for rows, filled in rows_by_count(weights):
            passed = self.chain.forward(self._named(self.W[rows]), x[rows, :filled])
            outputs[rows, :filled] = passed[-1].mT
        return outputs

    def _rows(self, active: int) -> Named:
        """The first ``active`` rows of ``W`` as tensors (active, …), by name."""
        if active not in self._parameters:
            self._parameters[active] = self._named(self.W[:active])
        return self._parameters[active]

    def _named(self, matrix: Tensor) -> Named:
        layout = self.model.layout
        return dict(zip(layout.names, split(matrix, layout), strict=True))

    def _through_chain(
        self, parameters: Named, x: Tensor, y: Tensor, share: float | None
    ) -> tuple[Tensor, Iterator[LinearPass]]:
        """Run some rows as one: each row's loss (C,), and the linear layers, last first.

        A row's loss is ``share`` × the sum of its samples' losses, or without a share their sum. Derivatives are those
        of these. ``y`` are labels, or what `targets` made of them for the same share.
        """
        passed = self.chain.forward(parameters, x)
        if not self.task.plain:
            losses, delta = self._by_task(passed[-1], y, summed=share is None)
            return losses, self.chain.backward(parameters, passed, delta)
        share = 1.0 if share is None else share
        logarithms = passed[-1].log_softmax(1)
        chosen = y if y.is_floating_point() else _chosen(y, logarithms.shape[1], share)
        delta = torch.ops.aten._log_softmax_backward_data(chosen, logarithms, 1, torch.float32)
        losses = (logarithms * chosen).sum((1, 2))
        return losses, self.chain.backward(parameters, passed, delta)

    def _by_task(self, outputs: Tensor, y: Tensor, *, summed: bool) -> tuple[Tensor, Tensor]:
        """Each row's loss, and the derivative by outputs (C, classes, B), whatever the task."""
        with torch.enable_grad():
            leaf = outputs.detach().mT.contiguous().requires_grad_()
            each = [
                self.task.sample_losses(row, label).sum() if summed else self.task.loss(row, label)
                for row, label in zip(leaf, y, strict=True)
            ]
            losses = torch.stack(each)
            (delta,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), delta.mT.contiguous()


def rows_by_count(weights: Tensor) -> Iterator[tuple[Tensor, int]]:
    """The rows with as many samples, without the padding that fills rows up.

    Padding would change the order in which sums are rounded, so that a row's result depended on its neighbours.
    """
    counts = (weights > 0).sum(1)
    for filled in sorted(set(counts.tolist())):
        yield (counts == filled).nonzero().squeeze(1), filled


def _chosen(y: Tensor, classes: int, share: float) -> Tensor:
    """−share at the label, zero at others (…, classes, B): the loss's derivative by logarithms of probabilities."""
    chosen = torch.zeros(*y.shape[:-1], classes, y.shape[-1], device=y.device)
    return chosen.scatter_(-2, y.unsqueeze(-2), -share)
