"""What a vector looks like on its way, and its bytes.

`Dense` is a vector's new value in full. `Ternary` is an increment from {-μ, 0, μ} (Algorithm 2), one μ, or one for
each tensor; `Signs` one from {-μ, μ}, a bit a parameter; `Quantised` one rounded to a byte a parameter. `Field` is a
Fisher diagonal with the anchor it pulls to. `encode` and `decode` are exact inverses, except that a sparse `Field` is
rounded: Fisher values to an eighth, displacements to a quarter of an octave.

docs/wire.md has the format byte by byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.context import Context, arranged, scheme
from efl.wire.everywhere import QUANTISED, SIGNS, Quantised, Signs, quantised, signs
from efl.wire.logarithm import ZERO, logarithms, values_of
from efl.wire.positions import pack_places, unpack_places
from efl.wire.rank_one import OFFSET, RankOne
from efl.wire.reader import Reader, opened, sealed, varints
from efl.wire.sign_coding import pack_signs, unpack_signs

Vector = NDArray[np.float32]
Positions = NDArray[np.int64]

DENSE, HALF, TERNARY, DENSE_FIELD, FIELD = range(1, 6)
NO_MOVE = 127  # the code of no displacement; others are steps below the largest


@dataclass(frozen=True, eq=False)
class Dense:
    """A vector's new value; ``half`` sends it as bfloat16."""

    values: Vector
    half: bool = False

    def onto(self, reference: Vector) -> Vector:
        """The vector after receiving this: the value itself."""
        return self.values

    def pack(self, context: Context) -> bytes:
        """Its bytes."""
        if self.half:
            return bytes([HALF]) + _bfloat16_codes(self.values).tobytes()
        return bytes([DENSE]) + self.values.astype("<f4", copy=False).tobytes()


@dataclass(frozen=True, eq=False)
class Ternary:
    """An increment at increasing ``positions``: ±``scales[0]``, or with one scale a tensor, that of its tensor."""

    layout: Layout
    positions: Positions
    positive: NDArray[np.bool_]
    scales: Vector

    @property
    def values(self) -> Vector:
        """The increment at ``positions``."""
        whole = len(self.scales) == 1
        magnitude = self.scales[0] if whole else np.repeat(self.scales, self.layout.counts(self.positions))
        return np.where(self.positive, magnitude, -magnitude).astype(np.float32)

    def onto(self, reference: Vector) -> Vector:
        """The vector after receiving this: the reference with the increment added."""
        result = reference.copy()
        result[self.positions] += self.values
        return result

    def pack(self, context: Context) -> bytes:
        """Its bytes, by the arrangement that makes them fewest."""
        number, bounds, places, _ = arranged(self.positions, context)
        by_row, signs = pack_signs(self.positive, self.positions, self.layout)
        head = bytes([TERNARY, number, by_row << 1 | (len(self.scales) == 1)])
        return head + self.scales.astype("<f4").tobytes() + pack_places(places, bounds) + signs


@dataclass(frozen=True, eq=False)
class Field:
    """Fisher values and the anchor's displacement from a reference both sides know, at ``index`` (None: everywhere).

    ``outline`` is a guess of the Fisher values everywhere. At an index a Fisher value is sent in eighths of an octave
    below the largest (or below the guess), 255 at most: what lies further below, eleven orders of magnitude, comes back
    as the smallest there is.
    """

    layout: Layout
    index: Positions | None
    fisher: Vector
    displacement: Vector
    outline: RankOne | None = None

    def pack(self, context: Context) -> bytes:
        """Its bytes."""
        if self.index is None:
            values = np.concatenate([self.fisher, self.displacement]).astype("<f4")
            return bytes([DENSE_FIELD]) + values.tobytes()
        outline = b"" if self.outline is None else self.outline.pack()
        number, bounds, places, order = arranged(self.index, _for_entries(context, self.outline))
        known = logarithms(self.fisher)
        guess = np.zeros(len(known), np.int64) if self.outline is None else self.outline.steps(self.index)
        base, codes = _relative(known, guess)
        top, moves = _moves(self.displacement)
        squeezed = zlib.compress(codes[order].tobytes() + moves[order].tobytes(), 9)
        head = bytes([FIELD, self.outline is not None]) + outline + bytes([number])
        return head + pack_places(places, bounds) + varints([base + OFFSET, top + OFFSET, len(squeezed)]) + squeezed


Change = Dense | Ternary | Signs | Quantised
Payload = Change | Field


def encode(payload: Payload, context: Context) -> bytes:
    """The bytes of a payload, with their checksum.

    >>> blob = encode(Dense(np.float32([1, 2])), Context.flat(2))
    >>> decode(blob, Context.flat(2)).values.tolist()
    [1.0, 2.0]
    """
    return sealed(payload.pack(context))


def decode(blob: bytes, context: Context) -> Payload:
    """The payload in ``blob``, which must fit the context; `WireError` otherwise."""
    try:
        reader = Reader(opened(blob))
        payload = _KINDS[reader.byte()](reader, context)
        reader.end()
    except WireError:
        raise
    except Exception as error:  # whatever garbage makes the parts above raise, it is one thing: not a payload
        raise WireError(f"not a payload: {error!r}") from error
    return payload


def is_whole(blob: bytes) -> bool:
    """Whether an encoded payload is a vector's new value, and not a change of it."""
    return blob[0] in (DENSE, HALF)


def _dense(reader: Reader, context: Context) -> Dense:
    return Dense(reader.floats(context.layout.n))


def _half(reader: Reader, context: Context) -> Dense:
    codes = reader.array(context.layout.n, "<u2")
    values = (codes.astype(np.uint32) << 16).view(np.float32)
    if not np.isfinite(values).all():
        raise WireError("a value is not finite")
    return Dense(values, half=True)


def _ternary(reader: Reader, context: Context) -> Ternary:
    arrangement, bounds = scheme(reader.byte(), context)
    flags = reader.byte()
    scales = read_scales(reader, context, one=bool(flags & 1))
    positions = arrangement.position(unpack_places(reader, bounds))
    if arrangement.moves:
        positions = np.sort(positions)
    positive = unpack_signs(reader, bool(flags & 2), positions, context.layout)
    return Ternary(context.layout, positions, positive, scales)


def read_scales(reader: Reader, context: Context, *, one: bool) -> Vector:
    """One scale for all, or one for each tensor."""
    return reader.scales(1 if one else len(context.layout.blocks))


def _dense_field(reader: Reader, context: Context) -> Field:
    n = context.layout.n
    fisher, displacement = reader.floats(n), reader.floats(n)
    if not (fisher >= 0).all():
        raise WireError("a Fisher value is negative")
    return Field(context.layout, None, fisher, displacement)


def _field(reader: Reader, context: Context) -> Field:
    outline = RankOne.unpack(reader, context.layout) if reader.byte() else None
    arrangement, bounds = scheme(reader.byte(), _for_entries(context, outline))
    positions = arrangement.position(unpack_places(reader, bounds))
    base, top, length = reader.varints(3)
    if max(base, top) >= 2 * OFFSET:
        raise WireError("the top of a field is out of range")
    codes = reader.inflated(length, 2 * len(positions))
    order = np.argsort(positions)
    index = positions[order]
    guess = np.zeros(len(index), np.int64) if outline is None else outline.steps(index)
    fisher = values_of(guess + (base - OFFSET) - codes[: len(index)][order].astype(np.int64))
    return Field(context.layout, index, fisher, _moved(top - OFFSET, codes[len(index) :][order]), outline)


_KINDS: dict[int, Callable[[Reader, Context], Payload]] = {
    DENSE: _dense,
    HALF: _half,
    TERNARY: _ternary,
    DENSE_FIELD: _dense_field,
    FIELD: _field,
    SIGNS: signs,
    QUANTISED: quantised,
}


def _for_entries(context: Context, outline: RankOne | None) -> Context:
    """Entries of a field are coded by the field both sides have, or where they have none, by its own outline."""
    return context if outline is None or context.field is not None else Context(context.layout, outline)


def _relative(known: Positions, guess: Positions) -> tuple[int, NDArray[np.uint8]]:
    """Steps below the largest excess over the guess; zeros and what is far below are the furthest there is."""
    excess = known - guess
    base = int(np.clip(excess.max(initial=-OFFSET), -OFFSET, OFFSET - 1))
    return base, np.clip(base - excess, 0, 255).astype(np.uint8)


def _moves(displacement: Vector) -> tuple[int, NDArray[np.uint8]]:
    """Sign, and quarters of an octave below the largest."""
    steps = logarithms(np.abs(displacement))
    top = int(max(steps.max(initial=ZERO), -OFFSET))
    below = np.minimum((top - steps + 1) // 2, NO_MOVE)
    return top, (below | (displacement < 0).astype(np.int64) << 7).astype(np.uint8)


def _moved(top: int, codes: NDArray[np.uint8]) -> Vector:
    below = (codes & 127).astype(np.int64)
    magnitude = values_of(np.where(below < NO_MOVE, top - 2 * below, ZERO))
    return np.where(codes >= 128, -magnitude, magnitude).astype(np.float32)


def _bfloat16_codes(values: Vector) -> NDArray[np.uint16]:
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
