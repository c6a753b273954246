"""How the functions in C are called: structures and arguments, as they are declared there."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    _Argument = type[ctypes._SimpleCData[Any]] | type[ctypes._Pointer[Any]]

_COUNT, _REAL, _FLAG, _ADDRESS = ctypes.c_int64, ctypes.c_float, ctypes.c_int32, ctypes.c_void_p


class _Numbers(ctypes.c_void_p):
    """A tensor, or None, as an argument: where its numbers lie."""

    @classmethod
    def from_param(cls, tensor: Tensor | None) -> _Numbers:
        """What the function is given."""
        return cls(None if tensor is None else tensor.data_ptr())


class Layer(ctypes.Structure):
    """A linear layer: its size, where its tensors lie in a flat vector, and the slope below zero of what follows."""

    _fields_ = (("inputs", _COUNT), ("outputs", _COUNT), ("weight", _COUNT), ("bias", _COUNT), ("slope", _REAL))


class Source(ctypes.Structure):
    """Samples as they are kept, bytes or floats; value · scale + shift, channel by channel, is what a network takes."""

    _fields_ = (
        ("samples", _ADDRESS),
        ("count", _COUNT),
        ("channels", _COUNT),
        ("size", _COUNT),
        ("scale", _ADDRESS),
        ("shift", _ADDRESS),
        ("bytes", _FLAG),
    )

    def __init__(self, samples: Tensor, scale: Tensor, shift: Tensor) -> None:
        self.tensors = samples, scale, shift  # must live as long as their addresses are in use
        count, channels = len(samples), len(scale)
        size = samples[0].numel() // channels if count else 0
        pointers = (tensor.data_ptr() for tensor in (scale, shift))
        super().__init__(samples.data_ptr(), count, channels, size, *pointers, samples.dtype == torch.uint8)


class Pull(ctypes.Structure):
    """Where a step ends, w becomes keep · w + shift at some places, or, if they are None, everywhere."""

    _fields_ = (("places", _ADDRESS), ("keep", _ADDRESS), ("shift", _ADDRESS), ("count", _COUNT))

    def __init__(self, places: Tensor | None, keep: Tensor, shift: Tensor) -> None:
        self.tensors = places, keep, shift
        addresses = (None if tensor is None else tensor.data_ptr() for tensor in self.tensors)
        super().__init__(*addresses, len(keep))


NO_PULL = Pull(None, torch.empty(0), torch.empty(0))


class Loops:
    """The functions; what they do is said where they are written. Those that can fail return 0 if they did not."""

    def __init__(self, library: ctypes.CDLL) -> None:
        source, pull = ctypes.POINTER(Source), ctypes.POINTER(Pull)
        chain: list[_Argument] = [_ADDRESS, _COUNT, _COUNT, _COUNT, _COUNT]
        self.fetch = library.efl_fetch
        self.fetch.argtypes, self.fetch.restype = [source, _Numbers, _COUNT, _Numbers], None
        self.exist = library.efl_exist
        self.exist.argtypes = [source, _Numbers, _COUNT]
        self.gradient = library.efl_chain_gradient
        self.gradient.argtypes = [*chain, *[_Numbers] * 6]
        self.train = library.efl_chain_train
        batches: list[_Argument] = [source, _Numbers, _Numbers, _Numbers, _COUNT, _COUNT]
        self.train.argtypes = [*chain, *batches, _Numbers, _REAL, pull, _Numbers, _COUNT, _Numbers, _Numbers]
