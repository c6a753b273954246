"""What a vector looks like on its way, and its bytes.

`Dense` is a vector's new value in full. `Ternary` is an increment from {-μ, 0, μ} (Algorithm 2), μ one for each
segment of the vector. `Field` is a Fisher diagonal with the anchor it pulls to, at some or all coordinates.
`encode` and `decode` are exact inverses, except that a `Field` at some coordinates only is rounded: Fisher values to an
eighth of an octave, displacements to bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.wire.positions import PackedPositions, Positions, pack_positions, unpack_positions

Vector = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Dense:
    """A vector's new value."""

    values: Vector

    def onto(self, reference: Vector) -> Vector:
        """The vector after receiving this: the value itself."""
        return self.values

    def _pack(self) -> list[Any]:
        return ["dense", _little(self.values)]

    @staticmethod
    def _unpack(fields: list[Any], n: int) -> Dense:
        (values,) = fields
        return Dense(_floats(values, n))


@dataclass(frozen=True, eq=False)
class Ternary:
    """An increment: ±``scales[i]`` at the next ``counts[i]`` of the increasing ``positions``, zero elsewhere."""

    n: int
    positions: Positions
    positive: NDArray[np.bool_]
    counts: tuple[int, ...]
    scales: Vector

    @property
    def values(self) -> Vector:
        """The increment at ``positions``."""
        magnitude = np.repeat(self.scales, self.counts)
        return np.where(self.positive, magnitude, -magnitude)

    def onto(self, reference: Vector) -> Vector:
        """The vector after receiving this: the reference with the increment added."""
        result = reference.copy()
        result[self.positions] += self.values
        return result

    def _pack(self) -> list[Any]:
        signs = np.packbits(self.positive).tobytes()
        return ["ternary", list(self.counts), _little(self.scales), *pack_positions(self.positions)[1:], signs]

    @staticmethod
    def _unpack(fields: list[Any], n: int) -> Ternary:
        counts, scales, width, unary, low, signs = fields
        if not all(isinstance(count, int) and 0 <= count <= n for count in counts):
            raise WireError("segment counts out of range")
        total = sum(counts)
        positions = unpack_positions(PackedPositions(total, width, unary, low), n)
        if len(signs) != -(-total // 8):
            raise WireError("signs have the wrong length")
        magnitudes = _floats(scales, len(counts))
        if not (magnitudes >= 0).all():
            raise WireError("a scale is negative or not a number")
        positive = np.unpackbits(np.frombuffer(signs, dtype=np.uint8), count=total).astype(bool)
        return Ternary(n, positions, positive, tuple(counts), magnitudes)


@dataclass(frozen=True, eq=False)
class Field:
    """Fisher values and the anchor's displacement from a reference both sides know, at ``index`` (None: everywhere)."""

    n: int
    index: Positions | None
    fisher: Vector
    displacement: Vector

    def _pack(self) -> list[Any]:
        if self.index is None:
            return ["field", None, _little(self.fisher), _little(self.displacement)]
        top = np.float32(self.fisher.max(initial=0.0))
        codes, moved = _log_codes(self.fisher, top), _bfloat16_codes(self.displacement)
        return ["field", list(pack_positions(self.index)), float(top), codes.tobytes(), _little(moved)]

    @staticmethod
    def _unpack(fields: list[Any], n: int) -> Field:
        if fields[0] is None:
            _, values, displacement = fields
            fisher = _floats(values, n)
            if not (fisher >= 0).all():
                raise WireError("a Fisher value is negative")
            return Field(n, None, fisher, _floats(displacement, n))
        packed, top, codes, moved = fields
        index = unpack_positions(PackedPositions(*packed), n)
        if len(codes) != len(index) or len(moved) != 2 * len(index) or not 0 <= top < np.inf:
            raise WireError("field values have the wrong length")
        shifts = _bfloat16_values(np.frombuffer(moved, dtype="<u2"))
        if not np.isfinite(shifts).all():
            raise WireError("a displacement is not finite")
        return Field(n, index, _log_values(np.frombuffer(codes, dtype=np.uint8), np.float32(top)), shifts)


Payload = Dense | Ternary | Field
_KINDS: dict[str, type[Dense] | type[Ternary] | type[Field]] = {"dense": Dense, "ternary": Ternary, "field": Field}


def encode(payload: Payload) -> bytes:
    """The bytes of a payload.

    >>> blob = encode(Dense(np.float32([1, 2])))
    >>> decode(blob, 2).values.tolist()
    [1.0, 2.0]
    """
    return cast(bytes, msgpack.packb(payload._pack()))


def decode(blob: bytes, n: int) -> Payload:
    """The payload of ``blob``, which must describe a vector of length ``n``; `WireError` otherwise."""
    try:
        kind, *fields = msgpack.unpackb(blob, max_map_len=0, max_array_len=max(n, 16), max_str_len=16)
        return _KINDS[kind]._unpack(fields, n)
    except WireError:
        raise
    except Exception as error:  # whatever garbage makes the parts above raise, it is one thing: not a payload
        raise WireError(f"not a payload: {error}") from error


def _little(values: NDArray[Any]) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _floats(data: bytes, count: int) -> Vector:
    if len(data) != 4 * count:
        raise WireError(f"expected {count} floats, got {len(data)} bytes")
    values = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise WireError("a value is not finite")
    return values


# 2^(i/8) as literal float32 values, so that decoding needs no transcendental function that could
# differ in the last bit between machines.
_EIGHTHS = np.array(
    [1.0, 1.0905077, 1.1892071, 1.2968396, 1.4142135, 1.5422108, 1.6817929, 1.8340081], dtype=np.float32
)


def _log_codes(values: Vector, top: np.float32) -> NDArray[np.uint8]:
    """255 is ``top``, every step down an eighth of an octave; 0 is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.rint(8 * np.log2(values / top)) + 255
    return np.where(values > 0, np.clip(below, 0, 255), 0).astype(np.uint8)


_STEPS = np.arange(-255, 1)
_LEVELS = np.where(_STEPS > -255, np.ldexp(_EIGHTHS[_STEPS % 8], _STEPS // 8), 0).astype(np.float32)


def _log_values(codes: NDArray[np.uint8], top: np.float32) -> Vector:
    values: Vector = _LEVELS[codes] * top
    return values


def _bfloat16_codes(values: Vector) -> NDArray[np.uint16]:
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _bfloat16_values(codes: NDArray[np.uint16]) -> Vector:
    return (codes.astype(np.uint32) << 16).view(np.float32)
