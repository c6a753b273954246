"""How the functions in C are called: structures and arguments, as they are declared there."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    _Argument = type[ctypes._SimpleCData[Any]] | type[ctypes._Pointer[Any]]

_COUNT, _REAL, _FLAG, _ADDRESS = ctypes.c_int64, ctypes.c_float, ctypes.c_int32, ctypes.c_void_p


class _Numbers(ctypes.c_void_p):
    """A tensor as an argument: where its numbers lie."""

    kind: torch.dtype

    @classmethod
    def from_param(cls, tensor: Tensor | None) -> _Numbers:
        """What the function is given; None is NULL."""
        return cls(None if tensor is None else address_of(tensor, cls.kind))


class _Floats(_Numbers):
    kind = torch.float32


class _Wholes(_Numbers):
    kind = torch.int64


_Memory = ctypes.c_char * 0  # of an array: it has an address, however many numbers lie there


class _Array(ctypes.c_void_p):
    """An array as an argument: where its numbers lie."""

    kind: np.dtype[Any]

    @classmethod
    def from_param(cls, array: NDArray[Any]) -> Any:
        """What the function is given; an array's own ``ctypes`` takes three times as long to tell its address."""
        if array.dtype != cls.kind:
            raise ValueError(f"compiled code needs contiguous {cls.kind}, not {array.dtype}")
        try:
            return _Memory.from_buffer(array.data)
        except (TypeError, ValueError):  # only to be read, or not contiguous
            return cls(address_in(array))


class _Float32s(_Array):
    kind = np.dtype(np.float32)


class _Float64s(_Array):
    kind = np.dtype(np.float64)


class _Int64s(_Array):
    kind = np.dtype(np.int64)


class _OptionalInt64s(_Int64s):
    @classmethod
    def from_param(cls, array: NDArray[Any] | None) -> Any:
        """None is NULL."""
        return None if array is None else super().from_param(array)


class _Int32s(_Array):
    kind = np.dtype(np.int32)


class _Bytes(_Array):
    kind = np.dtype(np.uint8)


def address_of(tensor: Tensor, *kinds: torch.dtype) -> int:
    """Where a tensor's numbers lie; `ValueError` if they are of another kind, on another device or not contiguous."""
    if tensor.dtype not in kinds or not tensor.is_contiguous() or not tensor.is_cpu:
        raise ValueError(f"compiled code needs contiguous {kinds[0]} on the CPU, not {tensor.dtype} on {tensor.device}")
    return tensor.data_ptr()


def address_in(array: NDArray[Any]) -> int:
    """Where an array's numbers lie; `ValueError` if they do not follow each other."""
    if not array.flags.c_contiguous:
        raise ValueError("compiled code needs contiguous numbers")
    return array.ctypes.data


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
        if shift.shape != scale.shape or channels * size * count != samples.numel():
            raise ValueError(f"{channels} channels in samples of shape {tuple(samples.shape[1:])}")
        pointers = (address_of(tensor, torch.float32) for tensor in (scale, shift))
        address = address_of(samples, torch.float32, torch.uint8)
        super().__init__(address, count, channels, size, *pointers, samples.dtype == torch.uint8)


class Step(ctypes.Structure):
    """A local step: w becomes keep · (w − η(g + drift)) + shift; all of it (n,), or (models, n) where models differ.

    ``places`` limits keep and shift to some coordinates. An explicit step pulls where it begins, at all coordinates.
    """

    _fields_ = (
        ("drift", _ADDRESS),
        ("keep", _ADDRESS),
        ("shift", _ADDRESS),
        ("places", _ADDRESS),
        ("count", _COUNT),
        ("drift_stride", _COUNT),
        ("pull_stride", _COUNT),
        ("is_explicit", _FLAG),
    )

    def __init__(
        self,
        drift: Tensor | None,
        keep: Tensor | None,
        shift: Tensor | None,
        places: Tensor | None,
        is_explicit: bool,
    ) -> None:
        self.tensors = drift, keep, shift, places  # must live as long as their addresses are in use
        count = 0 if keep is None else keep.shape[-1]
        if (keep is None) != (shift is None) or (keep is not None and shift is not None and keep.shape != shift.shape):
            raise ValueError("a step needs as many factors as shifts")
        if places is not None and (len(places) != count or is_explicit):
            raise ValueError("a step needs as many places as factors, and names none if it is explicit")
        floats = (None if t is None else address_of(t, torch.float32) for t in (drift, keep, shift))
        named = None if places is None else address_of(places, torch.int64)
        strides = (0 if t is None or t.dim() == 1 else t.shape[1] for t in (drift, keep))
        super().__init__(*floats, named, count, *strides, is_explicit)


class Cells(ctypes.Structure):
    """A tensor in an order of coordinates: its extent and width; its first row, column and cell; groups of columns."""

    _fields_ = tuple((name, _COUNT) for name in ("begin", "end", "columns", "row", "column", "cell", "groups"))


class Order(ctypes.Structure):
    """An order of n coordinates, by the tables that are named here, whole numbers of 32 bits."""

    TABLES = (
        *("row_group", "row_rank", "column_group", "column_rank", "begin", "width", "of", "order"),
        *("rows", "columns", "first_row", "first_column"),
    )
    _fields_ = (
        ("n", _COUNT),
        ("tensors", _COUNT),
        ("cells", _COUNT),
        ("tensor", ctypes.POINTER(Cells)),
        *((name, _ADDRESS) for name in TABLES),
    )

    def __init__(self, n: int, tensors: Sequence[Sequence[int]], tables: Mapping[str, NDArray[np.int32]]) -> None:
        self.tables = [tables[name] for name in self.TABLES]  # must live as long as their addresses are in use
        if any(table.dtype != np.int32 for table in self.tables):
            raise ValueError("compiled code needs tables of 32 bits")
        found = (Cells * len(tensors))(*(Cells(*tensor) for tensor in tensors))
        super().__init__(n, len(tensors), len(tables["begin"]), found, *map(address_in, self.tables))


class Loops:
    """The functions; what they do is said where they are written. Those that can fail return 0 if they did not."""

    def __init__(self, library: ctypes.CDLL) -> None:
        source, step = ctypes.POINTER(Source), ctypes.POINTER(Step)
        chain: list[_Argument] = [_ADDRESS, _COUNT, _COUNT, _COUNT, _COUNT]
        self.fetch = library.efl_fetch
        self.fetch.argtypes, self.fetch.restype = [source, _Wholes, _COUNT, _Floats], None
        self.exist = library.efl_exist
        self.exist.argtypes = [source, _Wholes, _COUNT]
        self.gradient = library.efl_chain_gradient
        self.gradient.argtypes = [*chain, _Floats, _Wholes, _Floats, _Floats, _REAL, _FLAG, *[_Floats] * 3]
        self.fisher = library.efl_chain_fisher
        self.fisher.argtypes = [*chain, _Floats, _Wholes, *[_Floats] * 4]
        self.answers = library.efl_chain_answers
        self.answers.argtypes = [_ADDRESS, _COUNT, _COUNT, source, _Wholes, _COUNT, _Floats, _Wholes, _Floats]
        self.train = library.efl_chain_train
        batches: list[_Argument] = [source, _Wholes, _Wholes, _Wholes, _COUNT, _COUNT]
        self.train.argtypes = [*chain, *batches, _Floats, _REAL, step, _Floats, _COUNT, *[_Floats] * 4]
        self._declare_numbers(library)
        self._declare_order(library)

    def _declare_numbers(self, library: ctypes.CDLL) -> None:
        self.squares = library.efl_squares
        self.squares.argtypes, self.squares.restype = [_Float32s, _COUNT], ctypes.c_double
        self.round_down = library.efl_round_down
        self.round_down.argtypes, self.round_down.restype = [*[_Float32s] * 2, _COUNT, _REAL, _Int64s, _Int32s], _COUNT
        self.add_at = library.efl_add_at
        self.add_at.argtypes = [_Float32s, _COUNT, _Int64s, _Float32s, _COUNT, _REAL]
        self.sum_by_remainder = library.efl_sum_by_remainder
        self.sum_by_remainder.argtypes = [_Int64s, _Float32s, _COUNT, _Float32s, *[_COUNT] * 2, _Float64s]
        self.non_zeros = library.efl_non_zeros
        self.non_zeros.argtypes, self.non_zeros.restype = [_Int32s, _COUNT, _Int64s, _Int32s], _COUNT
        self.round_down_drawn = library.efl_round_down_drawn
        self.round_down_drawn.argtypes = [_Float32s, _ADDRESS, _COUNT, _REAL, _Int64s, _Int32s]
        self.round_down_drawn.restype = _COUNT
        self.add_codes = library.efl_add_codes
        self.add_codes.argtypes = [_Int32s, _COUNT, _Int64s, _Int32s, _COUNT, _FLAG]

    def _declare_order(self, library: ctypes.CDLL) -> None:
        self.in_order = library.efl_in_order
        self.in_order.argtypes = [_Int64s, _COUNT, _COUNT, *[_Int64s] * 2]
        order = ctypes.POINTER(Order)
        self.places, self.positions = library.efl_places, library.efl_positions
        self.places.argtypes = self.positions.argtypes = [order, _Int64s, _COUNT, _Int32s]
        self.room_for_codes = library.efl_room_for_codes
        self.room_for_codes.argtypes, self.room_for_codes.restype = [_COUNT, _COUNT, _COUNT], _COUNT
        self.write_codes, self.read_codes = library.efl_write_codes, library.efl_read_codes
        self.write_codes.argtypes = [_Int64s, _Int32s, _OptionalInt64s, _COUNT, _Int64s, _COUNT, _Bytes]
        into: list[_Argument] = [_Int64s, _Int32s, ctypes.POINTER(_COUNT)]
        self.read_codes.argtypes = [order, _Bytes, _COUNT, _Int64s, _COUNT, _FLAG, *into]
        self.write_codes.restype = self.read_codes.restype = _COUNT
        self.placed, self.located = library.efl_placed, library.efl_located
        self.placed.argtypes = self.located.argtypes = [order, _Int64s, _COUNT, *[_Int64s] * 2]
