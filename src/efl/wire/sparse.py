"""Coordinates that are not zero: made, found, added and sorted, by compiled code where it is at hand."""

from __future__ import annotations

from ctypes import c_uint64

import numpy as np
from numpy.typing import NDArray

from efl.native import loaded

Positions = NDArray[np.int64]
Vector = NDArray[np.float32]

OUTSIDE = "a position outside the vector"
LANES = 8  # partial sums of squares: in this order compiled code finds the same sum, bit for bit


def squared_length(vector: Vector) -> float:
    """‖x‖², in double precision.

    >>> squared_length(np.arange(10, dtype=np.float32))
    285.0
    """
    loops = loaded()
    if loops is not None and vector.flags.c_contiguous:
        return float(loops.squares(vector, len(vector)))
    padded = np.zeros(-(-len(vector) // LANES) * LANES)
    np.square(vector, out=padded[: len(vector)], dtype=np.float64)
    total = 0.0
    for lane in padded.reshape(-1, LANES).sum(0).tolist():
        total += lane  # sum() may be more exact than compiled code is
    return total


def rounded_down(vector: Vector, step: np.float32, noise: Vector) -> tuple[Positions, NDArray[np.int32]]:
    """The non-zeros of ⌊x/step + noise⌋, whole numbers of 32 bits.

    >>> rounded_down(np.float32([3, 0.4, -1]), np.float32(2), np.float32([0.5, 0.5, 0.25]))
    (array([0, 2]), array([ 2, -1], dtype=int32))
    """
    loops = loaded()
    if loops is None or not vector.flags.c_contiguous:
        return non_zeros(np.floor(vector / step + noise).astype(np.int32))
    where, found = np.empty(len(vector), np.int64), np.empty(len(vector), np.int32)
    count = loops.round_down(vector, noise, len(vector), step, where, found)
    return where[:count].copy(), found[:count].copy()


def rounded_randomly(vector: Vector, step: np.float32, rng: np.random.Generator) -> tuple[Positions, NDArray[np.int32]]:
    """The same with the noise that ``rng`` draws next, which is then used up.

    >>> rounded_randomly(np.float32([3, 0.4, -1]), np.float32(2), np.random.default_rng(0))
    (array([0]), array([2], dtype=int32))
    """
    loops, n = loaded(), len(vector)
    generator = rng.bit_generator.state if loops is not None and vector.flags.c_contiguous else {}
    if loops is None or generator.get("bit_generator") != "PCG64" or generator["has_uint32"]:
        return rounded_down(vector, step, rng.random(n, dtype=np.float32))
    words = [word for name in ("state", "inc") for word in divmod(generator["state"][name], 2**64)]
    where, found = np.empty(n, np.int64), np.empty(n, np.int32)
    count = loops.round_down_drawn(vector, (c_uint64 * 4)(*words), n, step, where, found)
    return where[:count].copy(), found[:count].copy()


def add_codes(total: NDArray[np.int32], positions: Positions, codes: NDArray[np.int32], factor: int) -> None:
    """Add ``factor`` times some codes at different positions, in place.

    >>> total = np.int32([1, 1, 1])
    >>> add_codes(total, np.array([0, 2]), np.int32([1, -3]), 2)
    >>> total.tolist()
    [3, 1, -5]
    """
    loops = loaded()
    if loops is None or len(positions) != len(codes):
        total[_within(positions, len(total))] += codes * np.int32(factor)
    elif loops.add_codes(total, len(total), positions, codes, len(codes), factor):
        raise IndexError(OUTSIDE)


def add_at(total: Vector, positions: Positions, values: Vector, weight: float) -> None:
    """Add ``weight`` times some values at different positions, in place.

    >>> total = np.float32([1, 1, 1])
    >>> add_at(total, np.array([0, 2]), np.float32([1, 3]), 0.5)
    >>> total
    array([1.5, 1. , 2.5], dtype=float32)
    """
    loops, (positions, values) = loaded(), _as_many(positions, values)
    if loops is None or not total.flags.c_contiguous:
        total[_within(positions, len(total))] += values * np.float32(weight)
    elif loops.add_at(total, len(total), positions, values, len(positions), weight):
        raise IndexError(OUTSIDE)


def summed_by_remainder(positions: Positions, values: Vector, signs: Vector, width: int) -> NDArray[np.float64]:
    """The sums of values, each with the sign at its position, over positions alike but for multiples of ``width``.

    >>> summed_by_remainder(np.array([1, 2, 4]), np.float32([5, 6, 7]), np.float32([1, 1, -1, 1, 1]), 3)
    array([ 0., 12., -6.])
    """
    loops, (positions, values) = loaded(), _as_many(positions, values)
    if loops is None:
        signed = values * signs[_within(positions, len(signs))]
        return np.bincount(positions % width, signed, width).astype(np.float64, copy=False)
    sums = np.zeros(width)
    if loops.sum_by_remainder(positions, values, len(positions), signs, len(signs), width, sums):
        raise IndexError(OUTSIDE)
    return sums


def _as_many(positions: Positions, values: Vector) -> tuple[Positions, Vector]:
    """Both as compiled code takes them, one as long as the other."""
    if len(positions) != len(values):
        raise IndexError(f"{len(values)} values at {len(positions)} positions")
    return np.ascontiguousarray(positions, np.int64), np.ascontiguousarray(values, np.float32)


def _within(positions: Positions, n: int) -> Positions:
    """The positions, seen to be below ``n`` and not counted from the end, as compiled code sees to it."""
    if len(positions) and not 0 <= positions.min() <= positions.max() < n:
        raise IndexError(OUTSIDE)
    return positions


def non_zeros(codes: NDArray[np.int32]) -> tuple[Positions, NDArray[np.int32]]:
    """Where codes are not zero, and what they are there.

    >>> non_zeros(np.array([0, 7, 0, -1], np.int32))
    (array([1, 3]), array([ 7, -1], dtype=int32))
    """
    loops = loaded()
    if loops is None:
        positions = np.flatnonzero(codes != 0)
        return positions, codes[positions]
    where, found = np.empty(len(codes), np.int64), np.empty(len(codes), np.int32)
    count = loops.non_zeros(codes, len(codes), where, found)
    return where[:count].copy(), found[:count].copy()


def in_order(numbers: Positions) -> tuple[Positions, Positions]:
    """Whole numbers ≥ 0, each at most once, sorted, and where each was.

    >>> in_order(np.array([7, 2, 5]))
    (array([2, 5, 7]), array([1, 2, 0]))
    """
    loops = loaded()
    if loops is not None and len(numbers):
        found, order = np.empty_like(numbers), np.empty_like(numbers)
        if loops.in_order(numbers, len(numbers), int(numbers.max()), found, order):
            return found, order
    bits = len(numbers).bit_length()
    keyed = np.sort(numbers << bits | np.arange(len(numbers)))  # many times quicker than sorting indices
    return keyed >> bits, keyed & ((1 << bits) - 1)
