"""From samples as they are kept to what a network takes, batch by batch.

Images stay bytes and tokens small integers in memory; only the batch at hand is spread out to 32 or 64 bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from efl.errors import UserError
from efl.federation.lazy import LazyTensor
from efl.native import loaded
from efl.native.bindings import Source

Inputs = Callable[[Any], Any]  # from samples as they are kept to a tensor, or several by name


@dataclass(frozen=True)
class Pixels:
    """Bytes as floats, normalised channel by channel: (x/255 − mean) / deviation, for x (…, channels, height, width).

    >>> Pixels(mean=(0.5,), deviation=(0.25,))(torch.tensor([0, 255], dtype=torch.uint8)).tolist()
    [-2.0, 2.0]
    """

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)

    @cached_property
    def scale(self) -> Tensor:
        """What the bytes of each channel are multiplied by."""
        return torch.tensor([1 / (255 * deviation) for deviation in self.deviation])

    @cached_property
    def shift(self) -> Tensor:
        """What is added then."""
        return torch.tensor([-mean / deviation for mean, deviation in zip(self.mean, self.deviation, strict=True)])

    def __call__(self, x: Tensor) -> Tensor:
        """The batch as float32."""
        floats = x.to(torch.float32)
        if len(self.scale) == 1:
            floats.mul_(self.scale)
            return floats.add_(self.shift) if self.shift else floats
        return floats.mul_(self.scale.view(-1, 1, 1)).add_(self.shift.view(-1, 1, 1))


@dataclass(frozen=True)
class Fields:
    """Several tensors by name, from the bytes of one: what each is called, its type, and its shape per sample."""

    names: tuple[str, ...]
    types: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        parts = zip(self.names, self.shapes, self.types, strict=True)
        return ", ".join(f"{name} {shape} of {dtype}" for name, shape, dtype in parts)

    def then(self, inputs: Inputs | None) -> Inputs:
        """These, and what ``inputs`` makes of them, if anything."""
        return self if inputs is None else _Chained(self, inputs)

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        """A batch (…, bytes) as tensors (…, shape)."""
        found, start = {}, 0
        for name, dtype, shape in zip(self.names, self.types, self.shapes, strict=True):
            stop = start + prod(shape) * dtype.itemsize
            piece = x[..., start:stop].clone(memory_format=torch.contiguous_format).flatten()
            found[name] = piece.view(dtype).view(*x.shape[:-1], *shape)
            start = stop
        return found


def packed(x: Mapping[str, Tensor], inputs: Inputs | None = None) -> tuple[Tensor, Inputs]:
    """The tensors of a dictionary as one of bytes, and what makes them of a batch again; then ``inputs``, if any.

    >>> whole, unpack = packed({"a": torch.tensor([[1, 2]]), "b": torch.tensor([0.5])})
    >>> whole.shape, unpack(whole)["b"]
    (torch.Size([1, 20]), tensor([0.5000]))
    """
    tensors = {name: torch.as_tensor(part) for name, part in x.items()}
    sizes = {len(part) if part.dim() else 0 for part in tensors.values()}
    if len(sizes) != 1:
        raise UserError(f"samples: {', '.join(map(str, x))} must have as many entries each, one per sample")
    tensors = {name: part.float() if part.dtype == torch.float64 else part for name, part in tensors.items()}
    pieces = [part.contiguous().reshape(len(part), -1).view(torch.uint8) for part in tensors.values()]
    shapes = tuple(tuple(part.shape[1:]) for part in tensors.values())
    fields = Fields(tuple(tensors), tuple(part.dtype for part in tensors.values()), shapes)
    return torch.cat(pieces, dim=1), fields.then(inputs)


@dataclass(frozen=True)
class _Chained:
    """One after the other."""

    first: Inputs
    then: Inputs

    def __call__(self, x: Tensor) -> Any:
        return self.then(self.first(x))


def selected(whole: Tensor | LazyTensor, indices: Tensor) -> Tensor:
    """Samples by number; selecting whole ones is ten times as quick as general indexing."""
    return whole.index_select(0, indices.reshape(-1)).view(*indices.shape, *whole.shape[1:])


def fetched(whole: Tensor | LazyTensor, indices: Tensor, inputs: Inputs) -> Any:
    """What a network takes of these samples; picked out and made in one pass where compiled code is at hand."""
    loops = loaded()
    source = None if loops is None else source_of(whole, inputs)
    if loops is None or source is None:
        return inputs(selected(whole, indices))
    indices, floats = indices.to(torch.int64).contiguous(), torch.empty(indices.shape + whole.shape[1:])
    if not loops.exist(source, indices, indices.numel()):
        raise IndexError(f"there are only {len(whole)} samples")
    loops.fetch(source, indices, indices.numel(), floats)
    return floats


def source_of(whole: Tensor | LazyTensor, inputs: Inputs) -> Source | None:
    """The samples as compiled code reads them, if it can: pixels, or floats as they are."""
    if not isinstance(whole, Tensor) or not whole.is_contiguous() or not len(whole):
        return None
    if type(inputs) is Pixels and whole.dtype == torch.uint8:
        channels = len(inputs.scale)
        images = channels == 1 or (whole.dim() == 4 and whole.shape[1] == channels)
        return Source(whole, inputs.scale, inputs.shift) if images else None
    as_they_are = inputs is _as_float32 and whole.dtype == torch.float32
    return Source(whole, torch.ones(1), torch.zeros(1)) if as_they_are else None


def inputs_for(dtype: torch.dtype) -> Inputs:
    """What one would expect: bytes are pixels, other whole numbers are tokens, real numbers are float32."""
    if dtype == torch.uint8:
        return Pixels()
    return _as_float32 if dtype.is_floating_point or dtype == torch.bool else as_tokens


def as_tokens(x: Tensor) -> Tensor:
    """Whole numbers, for an embedding."""
    return x.long()


def _as_float32(x: Tensor) -> Tensor:
    return x.float()
