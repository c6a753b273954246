"""Gradients put where they belong: those of linear layers straight into a vector, or onto the weights themselves.

Autograd makes a new tensor for every gradient. Most parameters of a network are in its linear layers, and for them
making, copying and freeing that tensor takes a tenth of a training step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Gradients(TorchFunctionMode):
    """While the network runs in it, linear layers are noted; after `backward` the gradients can be used, once."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self.parameters = parameters
        self._number = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._passed: set[int] = set()
        self._products: dict[int, tuple[Tensor, Tensor]] = {}
        self._sums: dict[int, Tensor] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take over linear layers on matrices whose weight and bias are among the parameters, once each."""
        if function is F.linear and len(args) == 3 and not kwargs and args[0].dim() == 2:
            weight, bias = (self._number.get(id(parameter)) for parameter in args[1:])
            if weight is not None and bias is not None and not self._passed & {weight, bias}:
                self._passed |= {weight, bias}
                return _Linear.apply(*args, self, weight, bias)  # type: ignore[no-untyped-call]
        return function(*args, **(kwargs or {}))

    def backward(self, loss: Tensor) -> None:
        """Work out the gradient of ``loss``."""
        loss.backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def into(self, views: Sequence[Tensor]) -> None:
        """Let the views, one a parameter, hold the gradient."""
        for number, view in enumerate(views):
            gradient = self._taken(number)
            if (product := self._products.get(number)) is not None:
                torch.mm(*product, out=view)
            elif (delta := self._sums.get(number)) is not None:
                torch.sum(delta, 0, out=view)
            elif gradient is not None:
                view.copy_(gradient)
                continue
            else:
                view.zero_()
            if gradient is not None:  # the layer was used a second time
                view.add_(gradient)

    @torch.no_grad()
    def onto(self, views: Sequence[Tensor], eta: float) -> None:
        """Move the views by −η times the gradient."""
        for number, view in enumerate(views):
            if (product := self._products.get(number)) is not None:
                view.addmm_(*product, alpha=-eta)
            elif (delta := self._sums.get(number)) is not None:
                view.sub_(delta.sum(0), alpha=eta)
            if (gradient := self._taken(number)) is not None:
                view.sub_(gradient, alpha=eta)

    def passed(self, weight: int, bias: int, delta: Tensor, x: Tensor) -> None:
        """A linear layer's gradients are δᵀx and Σδ; x without its history, which leads back here and would stay."""
        self._products[weight], self._sums[bias] = (delta.t(), x.detach()), delta

    def _taken(self, number: int) -> Tensor | None:
        """What autograd itself left for a parameter."""
        gradient, self.parameters[number].grad = self.parameters[number].grad, None
        return gradient


class _Linear(torch.autograd.Function):
    """``F.linear`` whose backward leaves the gradients by weight and bias to be multiplied out later."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, owner: Gradients, number: int, bias_number: int
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.owner, ctx.numbers = owner, (number, bias_number)
        return torch.addmm(bias, x, weight.t())

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> tuple[Tensor | None, ...]:
        (delta,) = deltas
        x, weight = ctx.saved_tensors
        ctx.owner.passed(*ctx.numbers, delta, x)
        return (delta @ weight if ctx.needs_input_grad[0] else None), None, None, None, None, None
