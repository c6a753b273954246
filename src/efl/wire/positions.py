"""Where the non-zeros of a vector are, as Golomb–Rice coded gaps in two streams, class by class.

In a class of N places of which k are taken, the gap g before each is written as g >> b in unary and its low b bits
plainly, b being worked out from N and k by whole numbers; where more than half are taken, the free places are written
instead. All unary parts form one bit stream, the low parts another, so both directions are array operations without a
loop. For independent positions this is within half a percent of the entropy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.coordinate_order import CLASSES
from efl.wire.reader import LONGEST_VARINT, Reader, varints

Whole = NDArray[np.int64]


def pack_places(places: Whole, bounds: Whole) -> bytes:
    """The increasing ``places``, below ``bounds[-1]``; class c lies between ``bounds[c]`` and ``bounds[c + 1]``."""
    if len(bounds) == 2:
        return _pack_one(places - bounds[0], int(bounds[1] - bounds[0]))
    sizes = np.diff(bounds)
    taken = np.diff(np.searchsorted(places, bounds))
    written, counts = _written(places, bounds, sizes, taken)
    widths = low_widths(sizes, counts)
    gaps = _gaps(written, bounds, counts)
    stream = _pack_unary(gaps >> np.repeat(widths, counts))
    return b"".join([varints([*taken.tolist(), len(stream)]), stream, _pack_low(gaps, widths, counts)])


def unpack_places(reader: Reader, bounds: Whole) -> Whole:
    """The places, checked to lie in their classes before anything larger than the message itself is made."""
    if len(bounds) == 2:
        start, stop = bounds.tolist()
        alone = _unpack_one(reader, stop - start)
        if start:
            alone += start
        return alone
    sizes = np.diff(bounds)
    taken = np.array(reader.varints(len(sizes)), dtype=np.int64)
    if (taken > sizes).any():
        raise WireError("more non-zeros than there are places")
    counts = np.where(2 * taken > sizes, sizes - taken, taken)
    widths = low_widths(sizes, counts)
    (length,) = reader.varints(1)
    gaps = _unpack_unary(reader, length, int(counts.sum()), int((sizes >> widths)[counts > 0].sum()))
    _add_low(gaps, reader, widths, counts)
    gaps += 1
    steps = gaps.cumsum(out=gaps)
    stops = counts.cumsum()
    before = np.zeros(len(counts), np.int64)
    later = (counts > 0) & (stops > counts)
    before[later] = steps[(stops - counts)[later] - 1]
    steps += np.repeat(bounds[:-1] - before - 1, counts)
    if (steps[stops[counts > 0] - 1] >= bounds[1:][counts > 0]).any():
        raise WireError("a place lies outside its class")
    return _taken(steps, bounds, sizes, taken, counts)


def most_place_bytes(layout: Layout) -> int:
    """What `pack_places` never exceeds, in the classes of any coordinate order of this layout.

    In a class with a share q of the places to write, they take at most q·(1 + b) bits and 2^−b zeros per place: 1.5
    bits where q is a half, less otherwise. Every class has its count besides, and low bits that fill whole bytes.
    """
    return -(-3 * layout.n // 16) + CLASSES * len(layout.blocks) * (LONGEST_VARINT + 1) + LONGEST_VARINT


def _pack_one(places: Whole, size: int) -> bytes:
    """The same for a single class, with fewer operations: most messages of small models are this."""
    taken = len(places)
    written = places if 2 * taken <= size else _others(places, 0, size)
    width = low_width(size, len(written))
    gaps = _left_out(written)
    stream = _pack_unary(gaps >> width)
    return b"".join([varints([taken, len(stream)]), stream, pack_bits(gaps, width)])


def _unpack_one(reader: Reader, size: int) -> Whole:
    taken, length = reader.varints(2)
    if taken > size:
        raise WireError("more non-zeros than there are places")
    count = taken if 2 * taken <= size else size - taken
    if count == 0 and length == 0:
        return np.arange(taken)
    width = low_width(size, count)
    written = _unary_ends(reader, length, count, size >> width if count else 0)
    if width:  # the sum of all gaps so far, and as many places as come before
        rank = np.arange(count)
        written -= rank
        written <<= width
        written += unpack_bits(reader, count, width).cumsum(dtype=np.int64)
        written += rank
    if count and written[-1] >= size:
        raise WireError("a place lies outside its class")
    return written if 2 * taken <= size else _others(written, 0, size)


def low_width(size: int, count: int) -> int:
    """`low_widths` of one class."""
    return max(1, 962 * (2 * size - count) // (2000 * max(count, 1))).bit_length() - 1


def low_widths(sizes: Whole, counts: Whole) -> Whole:
    """The best number of low bits for geometric gaps, in whole numbers (0.481 ≈ −ln(golden ratio − 1))."""
    mean = 962 * (2 * sizes - counts) // (2000 * np.maximum(counts, 1))
    _, exponents = np.frexp(np.maximum(mean, 1).astype(np.float64))
    widths: Whole = exponents.astype(np.int64) - 1
    return widths


def _gaps(places: Whole, bounds: Whole, counts: Whole) -> Whole:
    """How many places of its class are left out before each."""
    gaps = _left_out(places)
    first = (counts.cumsum() - counts)[counts > 0]
    gaps[first] = places[first] - bounds[:-1][counts > 0]
    return gaps


def _left_out(increasing: Whole) -> Whole:
    """How many numbers are left out before each of the increasing ones, from 0 on."""
    gaps = increasing.copy()
    gaps[1:] -= increasing[:-1]
    gaps[1:] -= 1
    return gaps


def _pack_unary(quotients: Whole) -> bytes:
    """As many zeros as each says, and a one."""
    ends: Whole = quotients.cumsum() + np.arange(len(quotients))
    bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
    bits[ends] = 1
    return np.packbits(bits).tobytes()


def _unpack_unary(reader: Reader, length: int, count: int, zeros: int) -> Whole:
    """``count`` numbers from ``length`` bytes, in which there can be at most so many ``zeros``."""
    return _left_out(_unary_ends(reader, length, count, zeros))


def _unary_ends(reader: Reader, length: int, count: int, zeros: int) -> Whole:
    """Where each of them ends: at the ones."""
    if not count <= 8 * length <= count + zeros + 7:
        raise WireError("the unary stream has the wrong length")
    ends: Whole = np.flatnonzero(np.unpackbits(reader.array(length)).view(np.bool_))  # of bools: many times quicker
    if len(ends) != count:
        raise WireError(f"{count} places announced, {len(ends)} found")
    return ends


def _written(places: Whole, bounds: Whole, sizes: Whole, taken: Whole) -> tuple[Whole, Whole]:
    """The places to write: the taken ones, or in classes more than half full the free ones."""
    full = np.flatnonzero(2 * taken > sizes)
    if not len(full):
        return places, taken
    counts = taken.copy()
    stops = taken.cumsum()
    pieces = np.split(places, stops[:-1])
    for c in full:
        pieces[c] = _others(pieces[c], int(bounds[c]), int(sizes[c]))
        counts[c] = len(pieces[c])
    return np.concatenate(pieces), counts


def _taken(written: Whole, bounds: Whole, sizes: Whole, taken: Whole, counts: Whole) -> Whole:
    """The inverse of `_written`."""
    if not (2 * taken > sizes).any():
        return written
    found, at, start = np.empty(int(taken.sum()), dtype=np.int64), 0, 0
    for c in np.flatnonzero(sizes):
        piece = written[at : at + counts[c]]
        if 2 * taken[c] > sizes[c]:
            piece = _others(piece, int(bounds[c]), int(sizes[c]))
        found[start : start + taken[c]] = piece
        at, start = at + counts[c], start + taken[c]
    return found


def _others(places: Whole, start: int, size: int) -> Whole:
    free = np.ones(size, dtype=bool)
    free[places - start if start else places] = False
    found: Whole = np.flatnonzero(free)
    found += start
    return found


_SHIFTS = np.arange(31, -1, -1, dtype=np.uint32)
_POWERS: list[NDArray[Any]] = [  # of two, by the number of bits; up to eight bits make a byte
    (1 << np.arange(width - 1, -1, -1)).astype(np.uint8 if width <= 8 else np.int64) for width in range(33)
]


def _pack_low(gaps: Whole, widths: Whole, counts: Whole) -> bytes:
    """The low bits, class by class, each class filling whole bytes."""
    stops = counts.cumsum()
    used = np.flatnonzero((counts > 0) & (widths > 0))
    return b"".join([pack_bits(gaps[stops[c] - counts[c] : stops[c]], int(widths[c])) for c in used])


def _add_low(gaps: Whole, reader: Reader, widths: Whole, counts: Whole) -> None:
    """Make gaps of their high parts, in place: the low bits come class by class."""
    stops = counts.cumsum()
    for c in np.flatnonzero((counts > 0) & (widths > 0)):
        piece = gaps[stops[c] - counts[c] : stops[c]]
        piece <<= widths[c]
        piece |= unpack_bits(reader, int(counts[c]), int(widths[c]))


def pack_bits(gaps: Whole, width: int) -> bytes:
    """The low ``width`` bits of every gap, high ones first."""
    if width == 0:
        return b""
    if width <= 8:
        low = (gaps & ((1 << width) - 1)).astype(np.uint8)
        return np.packbits(np.unpackbits(low[:, None], axis=1)[:, 8 - width :]).tobytes()
    return np.packbits((gaps.astype(np.uint32)[:, None] >> _SHIFTS[32 - width :] & 1).astype(np.uint8)).tobytes()


def unpack_bits(reader: Reader, count: int, width: int) -> NDArray[np.integer]:
    """``count`` numbers of ``width`` bits."""
    bits = np.unpackbits(reader.array(-(-count * width // 8)), count=count * width).reshape(count, width)
    numbers: NDArray[np.integer] = bits @ _POWERS[width]
    return numbers
