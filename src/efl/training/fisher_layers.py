"""Squared gradients of every sample, layer by layer, from one forward and one backward pass over all of them.

A layer with weight matrix M makes M x_t of what it meets at each position t of a sample; the sample's gradient is
Σ_t δ_t x_tᵀ, with δ_t the derivative by what comes out. For linear layers on vectors there is one position, and the
squares need no gradient at all; convolutions have as many as pixels. A network qualifies if all its parameters belong
to such layers, each used once in a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efl.models.flat import FlatModel
from efl.models.outputs import answer
from efl.models.vectors import flatten
from efl.training.backends.chain import qualified
from efl.training.tasks.base import Task

FLOATS_AT_ONCE = 2**22  # of samples' gradients


@dataclass(eq=False)
class _Seen:
    """What a layer was given and what it made of that."""

    name: str
    layer: nn.Linear | nn.Conv2d
    inputs: Tensor
    outputs: Tensor


def layer_by_layer(
    model: FlatModel, module: nn.Module, task: Task, x: Any, y: Tensor, weights: Tensor
) -> Tensor | None:
    """The weighted mean of squared gradients, (n,); None if the network has other layers than these."""
    layers = {name: layer for name, layer in module.named_modules() if _trained(layer)}
    if not all(_known(layer) for layer in layers.values()) or _shared(module):
        return None
    with _watched(layers) as seen:
        outputs = answer(module, x)
    if sorted(one.name for one in seen) != sorted(layers):
        return None  # a layer was used twice, or not at all
    deltas = torch.autograd.grad(task.sample_losses(task.read(outputs), y).sum(), [one.outputs for one in seen])
    squares: dict[str, Tensor] = {}
    with torch.no_grad():
        for one, delta in zip(seen, deltas, strict=True):
            squares |= _squares(one, delta, weights)
    return flatten(squares[name] for name in model.trained_layout.names)


def _known(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear


def _trained(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _shared(module: nn.Module) -> bool:
    return len(list(module.parameters())) != len(list(module.named_parameters(remove_duplicate=False)))


@contextmanager
def _watched(layers: dict[str, nn.Module]) -> Iterator[list[_Seen]]:
    """Note what passes through the layers."""
    seen: list[_Seen] = []

    def watch(name: str, layer: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            assert isinstance(layer, nn.Linear | nn.Conv2d)
            seen.append(_Seen(name, layer, inputs[0].detach(), output))

        return layer.register_forward_hook(note)

    handles = [watch(name, layer) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _squares(one: _Seen, delta: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """By parameter: Σ over samples of weight × gradient²."""
    weight, bias = qualified(one.name, "weight"), qualified(one.name, "bias")
    if isinstance(one.layer, nn.Linear) and delta.dim() == 2:
        weighted = delta.square() * weights.unsqueeze(1)
        return {weight: weighted.T @ one.inputs.square(), bias: weighted.sum(0)}
    positions = delta.flatten(2) if isinstance(one.layer, nn.Conv2d) else delta.flatten(1, -2).mT  # (S, out, T)
    return {
        weight: _summed_squares(one, positions, weights).view(one.layer.weight.shape),
        bias: weights @ positions.sum(2).square(),
    }


def _summed_squares(one: _Seen, delta: Tensor, weights: Tensor) -> Tensor:
    """Of samples' gradients δ xᵀ, formed for some samples at a time."""
    total = torch.zeros(one.layer.weight.numel(), device=one.layer.weight.device)
    at_once = max(1, FLOATS_AT_ONCE // len(total))
    for part in (slice(start, start + at_once) for start in range(0, len(delta), at_once)):
        gradients = delta[part] @ _positions(one, part)
        total += weights[part] @ gradients.square_().flatten(1)
    return total


def _positions(one: _Seen, part: slice) -> Tensor:
    """What the layer met at every position, (S, T, in)."""
    inputs = one.inputs[part]
    if isinstance(one.layer, nn.Linear):
        return inputs.flatten(1, -2)
    layer = one.layer
    assert not isinstance(layer.padding, str)
    size, dilation, padding, stride = layer.kernel_size, layer.dilation, layer.padding, layer.stride
    return F.unfold(inputs, size, dilation, padding, stride).mT
