"""Whole numbers as short as their entropy, written by a range coder.

Two kinds of numbers are coded one after the other into one stream. *Places* are written class by class as the gaps
before each, which are geometrically distributed where within a class all places are equally likely. *Magnitudes* are
written by how often each occurs.
"""

from __future__ import annotations

import numpy as np

from efl.errors import WireError
from efl.wire.positions import pack_bits, unpack_bits
from efl.wire.range_coder import PLAIN, SYMBOLS, Coded, Magnitudes, Whole, decoded, encoded
from efl.wire.reader import Reader, varints


def number_bytes(places: Whole, magnitudes: Magnitudes, bounds: Whole) -> bytes:
    """Increasing places in classes, as in `pack_places`, and a magnitude from 0 to `LARGEST` for each.

    Counts, the coder's stream, the low bits of large magnitudes.
    """
    coded = encoded(places, magnitudes, bounds)
    counts = [*coded.taken.tolist(), len(coded.occur), *coded.occur.tolist(), len(coded.words)]
    pieces = [varints(counts), coded.words.astype("<u4", copy=False).tobytes()]
    if len(coded.occur) > PLAIN:
        large = magnitudes[magnitudes >= PLAIN]
        widths = map(_low_bits_of, range(PLAIN, len(coded.occur)))
        pieces.extend(pack_bits(large[large >> width == 1], width) for width in widths)
    return b"".join(pieces)


def read_numbers(reader: Reader, bounds: Whole) -> tuple[Whole, Magnitudes]:
    """Places, and a magnitude for each, as `number_bytes` wrote them.

    Raises:
        WireError: They are something else; found out before anything longer than the classes is made.
    """
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


def most_number_bytes(n: int, classes: int) -> int:
    """What `number_bytes` never exceeds for n places: a bit and a half each, and what magnitudes can take."""
    return 4 * n + 10 * (classes + SYMBOLS) + 64


def _low_bits_of(symbol: int) -> int:
    """How many bits of a magnitude follow the symbol for its octave."""
    return symbol - PLAIN + PLAIN.bit_length() - 1
