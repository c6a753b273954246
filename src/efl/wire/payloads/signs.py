"""An increment of ±μ at every position: one bit for each parameter."""

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

SIGNS = 6


@register(SIGNS)
@dataclass(frozen=True, eq=False)
class Signs(Payload):
    """An increment of +``scale`` where ``positive``, of −``scale`` otherwise."""

    positive: NDArray[np.bool_]
    scale: float = 1.0

    @property
    def values(self) -> Vector:
        """The increment."""
        return np.where(self.positive, np.float32(self.scale), -np.float32(self.scale))

    def onto(self, reference: Vector) -> Vector:
        """The reference with the increment added."""
        return reference + self.values

    def add_to(self, total: Vector, weight: float, reference: Vector) -> None:
        """Add ``weight`` times the increment."""
        add_scaled(total, self.values, weight)

    def pack(self, context: Context) -> bytes:
        """The scale, and a bit for each parameter."""
        return bytes([SIGNS]) + np.array([self.scale], "<f4").tobytes() + np.packbits(self.positive).tobytes()

    @classmethod
    def unpack(cls, kind: int, reader: Reader, context: Context) -> Self:
        """Read them."""
        (scale,) = reader.scales(1)
        n = context.layout.n
        bits = np.unpackbits(reader.array(-(-n // 8)))
        if bits[n:].any():
            raise WireError("a sign beyond the last parameter")
        return cls(bits[:n].view(np.bool_), float(scale))

    @classmethod
    def most_bytes(cls, layout: Layout) -> int:
        """Always the same."""
        return 1 + 4 + -(-layout.n // 8)
