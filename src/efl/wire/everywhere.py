"""Increments that have a value at every position, coarsely: a bit or a byte a parameter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.context import Context
from efl.wire.reader import Reader

Vector = NDArray[np.float32]

SIGNS, QUANTISED = 6, 7  # kinds of payloads
LEVELS = 127  # of a quantised value, each side of zero
LARGEST = np.finfo(np.float32).max / 2  # scale; all values are finite then, however they are rounded


@dataclass(frozen=True, eq=False)
class Signs:
    """An increment of +``scale`` where ``positive``, of −``scale`` elsewhere."""

    positive: NDArray[np.bool_]
    scale: float = 1.0

    @property
    def values(self) -> Vector:
        """The increment."""
        return np.where(self.positive, np.float32(self.scale), -np.float32(self.scale))

    def onto(self, reference: Vector) -> Vector:
        """The vector after receiving this: the reference with the increment added."""
        return reference + self.values

    def pack(self, context: Context) -> bytes:
        """Its bytes: the scale, and a bit a parameter."""
        return bytes([SIGNS]) + np.array([self.scale], "<f4").tobytes() + np.packbits(self.positive).tobytes()


@dataclass(frozen=True, eq=False)
class Quantised:
    """An increment of ``codes`` from −127 … 127, a whole number of 127ths of the ``scales``, one for each tensor."""

    layout: Layout
    codes: NDArray[np.int8]
    scales: Vector

    @property
    def values(self) -> Vector:
        """The increment."""
        steps = (self.scales / np.float32(LEVELS)).astype(np.float32)
        return self.codes.astype(np.float32) * np.repeat(steps, [stop - start for start, stop in self.layout.segments])

    def onto(self, reference: Vector) -> Vector:
        """The vector after receiving this: the reference with the increment added."""
        return reference + self.values

    def pack(self, context: Context) -> bytes:
        """Its bytes: the scales, and a byte a parameter."""
        return bytes([QUANTISED]) + self.scales.astype("<f4").tobytes() + self.codes.tobytes()


def signs(reader: Reader, context: Context) -> Signs:
    """Read them, after the kind."""
    (scale,) = reader.scales(1)
    n = context.layout.n
    bits = np.unpackbits(reader.array(-(-n // 8)))
    if bits[n:].any():
        raise WireError("a sign beyond the last parameter")
    return Signs(bits[:n].astype(bool), float(scale))


def quantised(reader: Reader, context: Context) -> Quantised:
    """Read it, after the kind."""
    scales = reader.scales(len(context.layout.blocks))
    codes = reader.array(context.layout.n, "i1")
    if (codes < -LEVELS).any() or (scales > LARGEST).any():
        raise WireError("a code or a scale is out of range")
    return Quantised(context.layout, codes, scales)
