"""A vector's new value in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.context import Context
from efl.wire.payloads.registry import Payload, Vector, add_scaled, register
from efl.wire.reader import Reader

DENSE, HALF = 1, 2


@register(DENSE, HALF)
@dataclass(frozen=True, eq=False)
class Dense(Payload):
    """A vector's new value; ``half`` sends it as bfloat16."""

    absolute: ClassVar[bool] = True

    values: Vector
    half: bool = False

    def onto(self, reference: Vector) -> Vector:
        """The value itself."""
        return self.values

    def add_to(self, total: Vector, weight: float, reference: Vector) -> None:
        """Add ``weight`` times what the value differs from ``reference``."""
        add_scaled(total, self.values - reference, weight)

    def pack(self, context: Context) -> bytes:
        """All values, in four bytes each or two."""
        if self.half:
            return b"".join([bytes([HALF]), _bfloat16_codes(self.values).data])
        return b"".join([bytes([DENSE]), np.ascontiguousarray(self.values, "<f4").data])

    @classmethod
    def unpack(cls, kind: int, reader: Reader, context: Context) -> Self:
        """Read them."""
        if kind == DENSE:
            return cls(reader.floats(context.layout.n))
        codes = reader.array(context.layout.n, "<u2").astype(np.uint32)
        codes <<= 16
        values = codes.view(np.float32)
        if not np.isfinite(values).all():
            raise WireError("a value is not finite")
        return cls(values, half=True)

    @classmethod
    def most_bytes(cls, layout: Layout) -> int:
        """Four bytes for each parameter."""
        return 1 + 4 * layout.n


def _bfloat16_codes(values: Vector) -> NDArray[np.uint16]:
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
