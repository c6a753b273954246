"""Tensors as one flat vector, and back.

Weights of convolutions lie in it channels last, which is the order that convolutions on a CPU compute in.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from efl.layout import Layout

CONVOLUTION = 4  # dimensions of its weight


def lay_out(tensors: Sequence[tuple[str, Tensor]]) -> Layout:
    """Named tensors one after the other."""
    return Layout(tuple(tuple(tensor.shape) for _, tensor in tensors), tuple(name for name, _ in tensors))


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Tensors as one vector, in the order in which the weights of convolutions lie there."""
    pieces = [_channels_last(tensor.detach()).reshape(-1) for tensor in tensors]
    return torch.cat(pieces) if pieces else torch.zeros(0)


def split(vector: Tensor, layout: Layout) -> list[Tensor]:
    """Views of ``vector`` (…, n) as the tensors of ``layout``, leading dimensions kept."""
    return [_view(vector[..., spec.start : spec.stop], spec.shape) for spec in layout.specs]


def _view(piece: Tensor, shape: tuple[int, ...]) -> Tensor:
    leading = piece.shape[:-1]
    if len(shape) != CONVOLUTION:
        return piece.view(*leading, *shape)
    outputs, inputs, height, width = shape
    return piece.view(*leading, outputs, height, width, inputs).movedim(-1, -3)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.movedim(1, -1) if tensor.dim() == CONVOLUTION else tensor
