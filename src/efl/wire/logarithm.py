"""Positive numbers as whole numbers: eighths of an octave. Decoding is exact on every machine."""

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Vector = NDArray[np.float32]

STEPS = 8
ZERO = -(2**20)  # stands for the logarithm of zero, below everything

# 2^(i/8) as literal float32 values, so that decoding needs no transcendental function that could
# differ in the last bit between machines.
_EIGHTHS = np.array(
    [1.0, 1.0905077, 1.1892071, 1.2968396, 1.4142135, 1.5422108, 1.6817929, 1.8340081], dtype=np.float32
)
LOWEST, HIGHEST = -126 * STEPS, 127 * STEPS  # the normal numbers of float32
_SMALLEST = np.float32(2.0**-126)
_LEVELS = np.append(
    np.ldexp(_EIGHTHS[np.arange(LOWEST, HIGHEST) % STEPS], np.arange(LOWEST, HIGHEST) // STEPS), np.float32(0)
).astype(np.float32)


def logarithms(values: NDArray[np.floating]) -> Whole:
    """log₂ in steps of an eighth, rounded; `ZERO` for zero.

    >>> logarithms(np.float32([1, 2, 0])).tolist()
    [0, 8, -1048576]
    """
    steps = np.log2(np.maximum(values, _SMALLEST))  # below, it is the lowest as well
    steps *= STEPS
    np.rint(steps, out=steps)
    np.minimum(steps, HIGHEST - 1, out=steps)
    return np.where(values > 0, steps, ZERO).astype(np.int64)


def values_of(steps: Whole) -> Vector:
    """2^(steps/8); what is below the normal numbers of float32 is zero.

    >>> values_of(np.array([0, 8, 12, ZERO])).tolist()
    [1.0, 2.0, 2.8284270763397217, 0.0]
    """
    index = np.minimum(steps, HIGHEST - 1) - LOWEST
    return _LEVELS[np.where(index >= 0, index, len(_LEVELS) - 1)]
