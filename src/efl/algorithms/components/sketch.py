"""Long vectors in short: signed sums of their coordinates, which keep lengths and inner products.

A count sketch (Charikar et al. 2002): coordinate i is added, with a random sign, to the place i mod d. It is linear, so
that means and memories of vectors can be kept as sketches, and ⟨Sx, Sy⟩ is ⟨x, y⟩ with an error of about ‖x‖‖y‖/√d.
d is a prime: neighbouring rows of a weight matrix must not fall onto each other.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from efl.wire.sparse import summed_by_remainder

Vector = NDArray[np.float32]


@lru_cache(maxsize=4)
def _signs(n: int, seed: int) -> Vector:
    bits = np.random.default_rng((seed, n)).integers(0, 2, n, dtype=np.int8)
    return (2 * bits - 1).astype(np.float32)


def sketched(values: Vector, n: int, width: int, seed: int, positions: NDArray[np.int64] | None = None) -> Vector:
    """The sketch of a vector of n coordinates, given in full or by the values at some positions; exact if n ≤ width.

    >>> sketched(np.float32([3.0, 4.0]), 2, 5, 0)
    array([3., 4., 0., 0., 0.], dtype=float32)
    """
    if n <= width:
        whole_vector = np.zeros(width, np.float32)
        whole_vector[slice(0, n) if positions is None else positions] = values
        return whole_vector
    signs = _signs(n, seed)
    if positions is not None:
        return summed_by_remainder(positions, values, signs, width).astype(np.float32)
    signed, whole = values * signs, n // width * width
    out: Vector = signed[:whole].reshape(-1, width).sum(0)
    out[: n - whole] += signed[whole:]
    return out
