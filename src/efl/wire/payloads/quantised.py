"""An increment rounded to one byte for each parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.context import Context
from efl.wire.payloads.registry import Payload, Vector, add_scaled, register
from efl.wire.reader import Reader

QUANTISED = 7
LEVELS = 127  # each side of zero
LARGEST = np.finfo(np.float32).max / 2  # scale; all values are finite then, however they are rounded


@register(QUANTISED)
@dataclass(frozen=True, eq=False)
class Quantised(Payload):
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
        """The reference with the increment added."""
        return reference + self.values

    def add_to(self, total: Vector, weight: float, reference: Vector) -> None:
        """Add ``weight`` times the increment."""
        add_scaled(total, self.values, weight)

    def pack(self, context: Context) -> bytes:
        """The scales, and a byte for each parameter."""
        return bytes([QUANTISED]) + self.scales.astype("<f4").tobytes() + self.codes.tobytes()

    @classmethod
    def unpack(cls, kind: int, reader: Reader, context: Context) -> Self:
        """Read them."""
        scales = reader.scales(len(context.layout.blocks))
        codes = reader.array(context.layout.n, "i1")
        if (codes < -LEVELS).any() or (scales > LARGEST).any():
            raise WireError("a code or a scale is out of range")
        return cls(context.layout, codes, scales)

    @classmethod
    def most_bytes(cls, layout: Layout) -> int:
        """Always the same."""
        return 1 + 4 * len(layout.blocks) + layout.n
