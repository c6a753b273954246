"""Gradients written where they belong: those of linear layers go straight into a vector, without a copy on the way.

Autograd makes a new tensor for every gradient. Most parameters of a network are in its linear layers, and for them
making, copying and freeing that tensor takes a tenth of a training step. The numbers are the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class GradientsInto(TorchFunctionMode):
    """While the network runs in it, linear layers are noted; `backward` then fills ``views``, one a parameter."""

    def __init__(self, parameters: Sequence[Tensor], views: Sequence[Tensor]) -> None:
        super().__init__()
        self.parameters, self.views = parameters, views
        self._number = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._passed: set[int] = set()
        self.written: set[int] = set()

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
        """Fill the views with the gradient of ``loss``."""
        loss.backward()  # type: ignore[no-untyped-call]
        for number, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            gradient, parameter.grad = parameter.grad, None
            if number in self.written:
                if gradient is not None:  # the layer was used a second time
                    view.add_(gradient)
            elif gradient is not None:
                view.copy_(gradient)
            else:
                view.zero_()


class _Linear(torch.autograd.Function):
    """``F.linear`` whose backward leaves the gradients by weight and bias in the views of its owner."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, owner: GradientsInto, number: int, bias_number: int
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.owner, ctx.numbers = owner, (number, bias_number)
        return torch.addmm(bias, x, weight.t())

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> tuple[Tensor | None, ...]:
        (delta,) = deltas
        x, weight = ctx.saved_tensors
        of_weight, of_bias = (ctx.owner.views[number] for number in ctx.numbers)
        torch.mm(delta.t(), x, out=of_weight)
        torch.sum(delta, 0, out=of_bias)
        ctx.owner.written |= set(ctx.numbers)
        return (delta @ weight if ctx.needs_input_grad[0] else None), None, None, None, None, None
