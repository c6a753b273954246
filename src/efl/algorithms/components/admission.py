"""Updates that count as something else than what was sent: scaled, or replaced by what a robust rule made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from torch import Tensor

from efl.errors import WireError
from efl.layout import Layout
from efl.wire import Context, Dense, Field, Lattice, Payload, Quantised, RankOneFisher, Signs, Ternary
from efl.wire.logarithm import LOWEST, ZERO, logarithms
from efl.wire.payloads.registry import Vector, add_scaled
from efl.wire.reader import Reader


@dataclass(frozen=True, eq=False)
class Increment(Payload):
    """An increment at the server, which never travels."""

    values: Vector

    def onto(self, reference: Vector) -> Vector:
        """The reference with the increment added."""
        return reference + self.values

    def add_to(self, total: Vector, weight: float, reference: Vector) -> None:
        """Add ``weight`` times the increment."""
        add_scaled(total, self.values, weight)

    def pack(self, context: Context) -> bytes:
        """There is no need for it."""
        raise TypeError("an increment of the server's own does not travel")

    @classmethod
    def unpack(cls, kind: int, reader: Reader, context: Context) -> Self:
        """None is ever read."""
        raise WireError("an increment of the server's own does not travel")

    @classmethod
    def most_bytes(cls, layout: Layout) -> int:
        """None."""
        return 0


def scaled(payload: Payload, factor: float, w: Tensor) -> Payload:
    """A change of the model ``w``, or a model in its stead, ``factor`` times as long; the same if that is 1.

    >>> scaled(Dense(np.float32([3.0, 1.0])), 0.5, Tensor([1.0, 1.0])).values.tolist()
    [1.0, 0.0]
    """
    if factor == 1:
        return payload
    if factor == 0:
        return Increment(np.zeros(len(w), np.float32))
    if isinstance(payload, Lattice):
        return replace(payload, step=payload.step * factor)
    if isinstance(payload, Signs):
        return replace(payload, scale=payload.scale * factor)
    if isinstance(payload, Ternary | Quantised):
        return replace(payload, scales=payload.scales * np.float32(factor))
    values = np.zeros(len(w), np.float32)
    payload.add_to(values, factor, w.numpy())
    return Increment(values)


def scaled_part(part: Payload, factor: float, shift: float = 1.0) -> Payload:
    """What comes beside an update: a vector, or a field, of which Fisher values and displacement (``shift``) scale."""
    if isinstance(part, Dense):
        return part if factor == 1 else replace(part, values=part.values * np.float32(factor))
    if not isinstance(part, Field) or factor == shift == 1:
        return part
    guess = part.factored_fisher
    return replace(
        part,
        fisher=part.fisher * np.float32(factor),
        displacement=part.displacement * np.float32(shift),
        factored_fisher=None if guess is None else _scaled_guess(guess, factor),
    )


def _scaled_guess(guess: RankOneFisher, factor: float) -> RankOneFisher:
    """The rows of a guess times a factor, to an eighth of an octave."""
    steps = int(logarithms(np.array([factor], np.float32))[0])
    rows = np.where(guess.rows == ZERO, ZERO, np.maximum(guess.rows + steps, LOWEST)) if factor > 0 else ZERO
    return replace(guess, rows=np.broadcast_to(rows, guess.rows.shape))
