"""A chain of linear layers run for a whole cohort at once: (C, B, features) through (C, out, in) weights.

Networks that are chains (`nn.Sequential` of `Linear`, `Flatten` and element-wise activations) get one
batched product a layer instead of C small ones. Any other network runs row by row.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity)


class Chain:
    """The layers of a network that can be run batched, with the names of their parameters."""

    def __init__(self, layers: Sequence[tuple[str, nn.Module]]) -> None:
        self.layers = tuple(layers)

    @classmethod
    def of(cls, module: nn.Module) -> "Chain | None":
        """The chain ``module`` is, or None if it is not one (or has frozen or shared parameters)."""
        layers = _unroll("", module)
        parameters = list(module.parameters())
        # parameters() yields a shared tensor once; the layers of a chain would count it twice.
        unshared = sum(len(list(layer.parameters())) for _, layer in layers) == len(parameters)
        if unshared and parameters and all(p.requires_grad for p in parameters) and all(_simple(m) for _, m in layers):
            return cls(layers)
        return None

    def forward(self, parameters: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, list[tuple[str, Tensor, Tensor]]]:
        """Outputs (C, B, classes), and for every linear layer (name, its input, its output): what Fisher needs."""
        linear: list[tuple[str, Tensor, Tensor]] = []
        for name, layer in self.layers:
            if isinstance(layer, nn.Linear):
                weight = parameters[qualified(name, "weight")].transpose(1, 2)
                bias = parameters.get(qualified(name, "bias"))
                out = torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)
                linear.append((name, x, out))
                x = out
            elif isinstance(layer, nn.Flatten):
                x = x.flatten(2)
            else:
                x = layer(x)
        return x, linear


def _simple(layer: nn.Module) -> bool:
    """Whether the layer does just what its class says: no subclass, hook, parametrisation or in-place trick."""
    plain = not (layer._forward_hooks or layer._forward_pre_hooks or getattr(layer, "inplace", False))
    if type(layer) is nn.Linear:
        return plain and {name for name, _ in layer.named_parameters()} <= {"weight", "bias"}
    if type(layer) is nn.Flatten:
        return plain and (layer.start_dim, layer.end_dim) == (1, -1)
    return plain and type(layer) in ELEMENTWISE


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
