"""Codes at their places, as short as their entropy.

Two kinds of numbers are written by a range coder one after the other into one stream. *Places* are written class by
class as the gaps before each, which are geometrically distributed where within a class all places are equally likely.
*Magnitudes* are written by how often each occurs, large ones as their octave. Before the stream come how many places
each class has and how often each symbol occurs, after it low bits of large magnitudes and the signs.

Where compiled code is at hand (`native/codes.c`) it does all of this in one call, byte for byte the same: messages of
small models are so short that calling NumPy would take longer than coding.
"""

from __future__ import annotations

from ctypes import byref, c_int64

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.native import Loops, loaded
from efl.wire.coordinate_order import CoordinateOrder, Whole
from efl.wire.positions import pack_bits, unpack_bits
from efl.wire.range_coder import PLAIN, SYMBOLS, Coded, Magnitudes, decoded, encoded
from efl.wire.reader import Reader, varints

Codes = NDArray[np.int32]


def code_bytes(codes: Codes, places: Whole, order: Whole | slice, bounds: Whole) -> bytes:
    """Codes that are not zero, at increasing places in classes, as in `pack_places`.

    ``order`` says at which of the codes each place's is found; signs are written in the order of the codes.
    """
    loops = loaded()
    if loops is not None:
        which = None if isinstance(order, slice) else order
        room = np.empty(loops.room_for_codes(len(codes), int(bounds[-1]), len(bounds) - 1), np.uint8)
        count = loops.write_codes(places, codes, which, len(codes), bounds, len(bounds) - 1, room)
        if count < 0:
            raise MemoryError
        return room[:count].tobytes()
    magnitudes = np.abs(codes[order]) - 1
    coded = encoded(places, magnitudes, bounds)
    counts = [*coded.taken.tolist(), len(coded.occur), *coded.occur.tolist(), len(coded.words)]
    pieces = [varints(counts), coded.words.astype("<u4", copy=False).tobytes()]
    if len(coded.occur) > PLAIN:
        large = magnitudes[magnitudes >= PLAIN]
        widths = map(_low_bits_of, range(PLAIN, len(coded.occur)))
        pieces.extend(pack_bits(large[large >> width == 1], width) for width in widths)
    return b"".join([*pieces, np.packbits(codes > 0).tobytes()])


def read_codes(reader: Reader, order: CoordinateOrder, bounds: Whole, most: int) -> tuple[Whole, Codes]:
    """Increasing positions, and a code of a magnitude up to ``most`` for each, as `code_bytes` wrote them.

    Raises:
        WireError: They are something else; found out before anything is made that is longer than the classes, or than a
            few numbers for every bit: each code has a sign.
    """
    loops = loaded()
    if loops is not None and (order.tables is not None or not order.moves):
        return _read_in_c(loops, reader, order, bounds, most)
    places, magnitudes = _read_numbers(reader, bounds)
    if len(magnitudes) and magnitudes.max() >= most:
        raise WireError("a code out of range")
    positions, back = order.located(places)
    count = len(positions)
    codes = np.unpackbits(reader.array(-(-count // 8)), count=count).astype(np.int32)  # 1 or 0
    codes *= 2
    codes -= 1
    codes *= magnitudes[back] + 1
    return positions, codes


def _read_in_c(loops: Loops, reader: Reader, order: CoordinateOrder, bounds: Whole, most: int) -> tuple[Whole, Codes]:
    data, used, n = reader.rest(), c_int64(), int(bounds[-1])
    room = min(n, 8 * len(data))
    positions, codes = np.empty(room, np.int64), np.empty(room, np.int32)
    head = order.tables, data, len(data), bounds, len(bounds) - 1
    count = loops.read_codes(*head, most, positions, codes, byref(used))
    if count < 0:
        raise WireError("codes that nobody writes")
    reader.at += used.value
    return positions[:count].copy(), codes[:count].copy()


def _read_numbers(reader: Reader, bounds: Whole) -> tuple[Whole, Magnitudes]:
    taken = np.array(reader.varints(len(bounds) - 1), dtype=np.int64)
    if (taken > np.diff(bounds)).any():
        raise WireError("more non-zeros than there are places")
    (symbols,) = reader.varints(1)
    if symbols > SYMBOLS:
        raise WireError("magnitudes out of range")
    occur = np.array(reader.varints(symbols), dtype=np.int64)
    if occur.sum() != taken.sum():
        raise WireError("not one magnitude for each place")
    (length,) = reader.varints(1)
    words = reader.array(length, "<u4").astype(np.uint32)
    if taken.sum() > 8 * len(reader.rest()):
        raise WireError("fewer signs than codes")
    places, found = decoded(Coded(taken, occur, words), bounds)
    return places, found if symbols <= PLAIN else _with_low_bits(found, symbols, reader)


def _with_low_bits(found: Magnitudes, symbols: int, reader: Reader) -> Magnitudes:
    """Magnitudes of which only the octave is known, completed."""
    large = np.flatnonzero(found >= PLAIN)
    octaves, magnitudes = found[large], found.copy()
    for symbol in range(PLAIN, symbols):
        chosen, width = large[octaves == symbol], _low_bits_of(symbol)
        magnitudes[chosen] = unpack_bits(reader, len(chosen), width).astype(np.int32) | 1 << width
    return magnitudes


def most_code_bytes(n: int, classes: int) -> int:
    """What `code_bytes` never exceeds for n places: a bit and a half each, what magnitudes can take, and signs."""
    return 4 * n + 10 * (classes + SYMBOLS) + 64 + -(-n // 8)


def _low_bits_of(symbol: int) -> int:
    """How many bits of a magnitude follow the symbol for its octave."""
    return symbol - PLAIN + PLAIN.bit_length() - 1
