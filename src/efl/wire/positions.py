"""Positions of the non-zeros of a vector, as Golomb–Rice coded gaps in two streams.

A gap g is written as g >> b in unary and its low b bits plainly. All unary parts form one bit stream, all
low parts another, so both directions are array operations without a loop. For independent positions this
is within half a percent of the entropy.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError

Positions = NDArray[np.int64]
_SHIFTS = np.arange(31, -1, -1, dtype=np.uint32)


class PackedPositions(NamedTuple):
    """``total`` positions below some known n: Rice parameter, unary stream, low bits."""

    total: int
    low_width: int
    unary: bytes
    low: bytes


def pack_positions(positions: Positions) -> PackedPositions:
    """Pack strictly increasing positions."""
    count = len(positions)
    if count == 0:
        return PackedPositions(0, 0, b"", b"")
    gaps = _gaps(positions)
    width = _low_width(positions)
    ends = (gaps >> width).cumsum() + np.arange(count)
    unary = np.zeros(int(ends[-1]) + 1, dtype=np.uint8)
    unary[ends] = 1
    return PackedPositions(count, width, np.packbits(unary).tobytes(), _pack_low(gaps, width))


def unpack_positions(packed: PackedPositions, n: int) -> Positions:
    """The positions, checked to lie in 0 … n-1 before anything of size n is made."""
    count, width = packed.total, packed.low_width
    if not 0 <= count <= n or not 0 <= width < 32:
        raise WireError(f"{count} positions with {width} low bits in a vector of {n}")
    if len(packed.low) != -(-count * width // 8) or 8 * len(packed.unary) > n + count + 7:
        raise WireError("positions have the wrong length")
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(packed.unary, dtype=np.uint8)))
    if len(ends) != count:
        raise WireError(f"{count} positions announced, {len(ends)} found")
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    gaps = (_gaps(ends) << width) | _unpack_low(packed.low, count, width)
    positions: Positions = gaps.cumsum() + np.arange(count)
    if positions[-1] >= n:
        raise WireError(f"position {positions[-1]} in a vector of {n}")
    return positions


def _gaps(increasing: Positions) -> Positions:
    """How many numbers are left out before each of the increasing ones, from 0 on."""
    gaps = increasing.copy()
    gaps[1:] -= increasing[:-1]
    gaps[1:] -= 1
    return gaps


def _low_width(positions: Positions) -> int:
    """The best parameter for geometric gaps of this mean, in whole numbers (0.481 ≈ −ln(golden ratio − 1))."""
    span, count = int(positions[-1]) + 1, len(positions)
    return max(1, 962 * (2 * span - count) // (2000 * count)).bit_length() - 1


def _pack_low(gaps: Positions, width: int) -> bytes:
    if width == 0:
        return b""
    bits = gaps.astype(np.uint32)[:, None] >> _SHIFTS[32 - width :]
    return np.packbits((bits & 1).astype(np.uint8)).tobytes()


def _unpack_low(low: bytes, count: int, width: int) -> Positions:
    if width == 0:
        return np.zeros(count, dtype=np.int64)
    bits = np.unpackbits(np.frombuffer(low, dtype=np.uint8), count=count * width).reshape(count, width)
    values: Positions = bits @ (np.int64(1) << _SHIFTS[32 - width :].astype(np.int64))
    return values
