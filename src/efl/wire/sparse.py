"""Coordinates that are not zero: found and sorted, by compiled code where it is at hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from efl.native import loaded

Positions = NDArray[np.int64]


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
