"""A chain of linear layers run for a whole cohort at once: (C, B, features) through (C, out, in) weights.

Networks that are chains (`nn.Sequential` of `Linear`, `Flatten` and element-wise activations) get one batched product
a layer instead of C small ones, and their derivatives are worked out here, layer by layer, instead of by autograd: for
small networks most of a training step would be its bookkeeping. Any other network runs row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

aten = torch.ops.aten

# The derivative by an activation's input, from that by its output: (layer, derivative, input, output).
ACTIVATIONS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda layer, delta, x, out: aten.threshold_backward(delta, out, 0),
    nn.LeakyReLU: lambda layer, delta, x, out: aten.leaky_relu_backward(delta, x, layer.negative_slope, False),
    nn.ELU: lambda layer, delta, x, out: aten.elu_backward(delta, layer.alpha, 1, 1, False, x),
    nn.GELU: lambda layer, delta, x, out: aten.gelu_backward(delta, x, approximate=layer.approximate),
    nn.SiLU: lambda layer, delta, x, out: aten.silu_backward(delta, x),
    nn.Tanh: lambda layer, delta, x, out: aten.tanh_backward(delta, out),
    nn.Sigmoid: lambda layer, delta, x, out: aten.sigmoid_backward(delta, out),
    nn.Softplus: lambda layer, delta, x, out: aten.softplus_backward(delta, x, layer.beta, layer.threshold),
    nn.Identity: lambda layer, delta, x, out: delta,
}


@dataclass(frozen=True, eq=False)
class Link:
    """A layer with the names of its parameters, if it is linear; ``bias`` is None where it has none."""

    layer: nn.Module
    weight: str | None
    bias: str | None

    @cached_property
    def narrow(self) -> bool:
        """Whether it is linear, with few outputs and many inputs."""
        return isinstance(self.layer, nn.Linear) and self.layer.out_features <= 16 and self.layer.in_features >= 256

    @cached_property
    def flattens(self) -> bool:
        """Whether it makes one dimension of all but the first two."""
        return isinstance(self.layer, nn.Flatten)


@dataclass(frozen=True, eq=False)
class LinearPass:
    """What went through a linear layer: its input (C, B, in) and the derivative by its output (C, B, out).

    Nothing later in the pass needs the layer's weight, so it may be changed.
    """

    weight: str
    bias: str | None
    inputs: Tensor
    delta: Tensor


class Chain:
    """The layers of a network that can be run batched."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = tuple(links)
        linear = [number for number, link in enumerate(self.links) if link.weight is not None]
        self.first, self.last = linear[0], linear[-1]
        self.outputs = int(self.links[linear[-1]].layer.get_parameter("weight").shape[0])

    @classmethod
    def of(cls, module: nn.Module) -> Chain | None:
        """The chain ``module`` is, or None if it is not one (or has frozen or shared parameters)."""
        layers = _unroll("", module)
        parameters = list(module.parameters())
        # parameters() yields a shared tensor once; the layers of a chain would count it twice.
        unshared = sum(len(list(layer.parameters())) for _, layer in layers) == len(parameters)
        if unshared and parameters and all(p.requires_grad for p in parameters) and all(_simple(m) for _, m in layers):
            return cls([_link(name, layer) for name, layer in layers])
        return None

    def forward(self, parameters: Mapping[str, Tensor], x: Tensor) -> list[Tensor]:
        """What goes into every layer, and last what comes out, (C, classes, B).

        From the last linear layer on, values lie class by class: a softmax over neighbours in memory would take eight
        times as long.
        """
        passed = [x]
        for number, link in enumerate(self.links):
            if link.weight is not None:
                weight, bias = parameters[link.weight], None if link.bias is None else parameters[link.bias]
                x = _narrow(x, weight, bias) if link.narrow else _wide(x, weight, bias).mT
                x = x.contiguous() if number == self.last else x.mT
            elif link.flattens:
                x = x.flatten(2)
            else:
                x = link.layer.forward(x)
            passed.append(x)
        return passed

    def backward(self, parameters: Mapping[str, Tensor], passed: list[Tensor], delta: Tensor) -> Iterator[LinearPass]:
        """The linear layers from the last to the first; ``delta`` is the derivative by the outputs (C, classes, B)."""
        for number in range(len(self.links) - 1, self.first - 1, -1):
            link, x = self.links[number], passed[number]
            if link.weight is not None:
                by_output = delta.mT if number == self.last else delta
                if number > self.first:
                    delta = torch.bmm(by_output, parameters[link.weight])
                yield LinearPass(link.weight, link.bias, x, by_output)
            elif link.flattens:
                delta = delta.view(x.shape)
            else:
                delta = ACTIVATIONS[type(link.layer)](link.layer, delta, x, passed[number + 1])


def _wide(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def _narrow(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same the other way round, (C, out, B): with few outputs and many inputs that is many times quicker."""
    return torch.bmm(weight, x.mT) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, x.mT)


def _link(name: str, layer: nn.Module) -> Link:
    if not isinstance(layer, nn.Linear):
        return Link(layer, None, None)
    return Link(layer, qualified(name, "weight"), None if layer.bias is None else qualified(name, "bias"))


def _simple(layer: nn.Module) -> bool:
    """Whether the layer does just what its class says: no subclass, hook, parametrisation or in-place trick."""
    plain = not (layer._forward_hooks or layer._forward_pre_hooks or getattr(layer, "inplace", False))
    if type(layer) is nn.Linear:
        return plain and {name for name, _ in layer.named_parameters()} <= {"weight", "bias"}
    if type(layer) is nn.Flatten:
        return plain and (layer.start_dim, layer.end_dim) == (1, -1)
    return plain and type(layer) in ACTIVATIONS


def _unroll(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential or module._forward_hooks or module._forward_pre_hooks:
        return [(prefix, module)]
    found: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        found += _unroll(qualified(prefix, name), child)
    return found


def qualified(prefix: str, name: str) -> str:
    """The dotted name PyTorch gives a child or parameter ``name`` of the module called ``prefix``."""
    return f"{prefix}.{name}" if prefix else name
