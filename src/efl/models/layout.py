"""Where tensors lie in a flat vector.

Weights of convolutions lie in it channels last, which is the order that convolutions on a CPU compute in.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

CONVOLUTION = 4  # dimensions of its weight


@dataclass(frozen=True)
class TensorSpec:
    """Where a tensor lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def lay_out(tensors: Iterable[tuple[str, Tensor]]) -> tuple[TensorSpec, ...]:
    """Named tensors one after the other."""
    specs: list[TensorSpec] = []
    position = 0
    for name, tensor in tensors:
        specs.append(TensorSpec(name, tuple(tensor.shape), position, position + tensor.numel()))
        position += tensor.numel()
    return tuple(specs)


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Tensors as one vector, in the order in which the weights of convolutions lie there."""
    pieces = [_channels_last(tensor.detach()).reshape(-1) for tensor in tensors]
    return torch.cat(pieces) if pieces else torch.zeros(0)


def split(vector: Tensor, layout: tuple[TensorSpec, ...]) -> list[Tensor]:
    """Views of ``vector`` (…, n) as the tensors of ``layout``, leading dimensions kept."""
    return [_view(vector[..., spec.start : spec.stop], spec.shape) for spec in layout]


def _view(piece: Tensor, shape: tuple[int, ...]) -> Tensor:
    leading = piece.shape[:-1]
    if len(shape) != CONVOLUTION:
        return piece.view(*leading, *shape)
    outputs, inputs, height, width = shape
    return piece.view(*leading, outputs, height, width, inputs).movedim(-1, -3)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.movedim(1, -1) if tensor.dim() == CONVOLUTION else tensor
