"""A range coder (Martin 1979) for places and magnitudes: that of the `constriction` library.

Both sides make the tables of probabilities from the same whole numbers, by nothing but products and quotients of IEEE
doubles, so they agree on every machine; compiled code (`native/numbers.c`) does the same, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from constriction import stream
from numpy.typing import NDArray

from efl.errors import WireError

Whole = NDArray[np.int64]
Magnitudes = NDArray[np.int32]

LONGEST_TABLE = 1024  # gaps; a longer one is written as so many free places, and a gap again
TAIL = 12  # a table ends where a gap is e^−12 as likely as none
PLAIN = 16  # magnitudes below are symbols of their own, others one symbol per octave and their low bits
LARGEST = 2**31 - 1
SYMBOLS = PLAIN + LARGEST.bit_length() - PLAIN.bit_length() + 1


@dataclass(frozen=True, eq=False)
class Coded:
    """How many places there are in each class, how often each symbol of a magnitude occurs, and the coder's stream."""

    taken: Whole
    occur: Whole
    words: NDArray[np.uint32]


def encoded(places: Whole, magnitudes: Magnitudes, bounds: Whole) -> Coded:
    """Increasing places, in classes as in `pack_places`, and the symbol of a magnitude for each."""
    coder = stream.queue.RangeEncoder()
    stops = np.searchsorted(places, bounds)
    for (start, stop), (first, end) in zip(pairwise(stops.tolist()), pairwise(bounds.tolist()), strict=True):
        if start < stop < start + end - first:
            _encode_gaps(coder, np.diff(places[start:stop], prepend=first - 1) - 1, end - first)
    symbols = symbols_of(magnitudes)
    occur = np.bincount(symbols)
    if len(occur) > 1:
        coder.encode(symbols, _symbol_model(occur))
    return Coded(np.diff(stops), occur, coder.get_compressed())


def decoded(coded: Coded, bounds: Whole) -> tuple[Whole, Magnitudes]:
    """The places, and the symbol of a magnitude for each; `WireError` if these are not what was encoded."""
    coder = stream.queue.RangeDecoder(coded.words)
    sizes, firsts = np.diff(bounds).tolist(), bounds.tolist()
    classes = zip(coded.taken.tolist(), sizes, firsts[:-1], strict=True)
    found = [first + _places(coder, count, size) for count, size, first in classes if count]
    places = np.concatenate([np.empty(0, np.int64), *found])
    return places, _symbols(coder, coded.occur, len(places))


def symbols_of(magnitudes: Magnitudes) -> Magnitudes:
    """Small numbers themselves; of others, which octave.

    >>> symbols_of(np.array([3, 15, 16, 31, 32, LARGEST], np.int32)).tolist()
    [3, 15, 16, 16, 17, 42]
    """
    if not len(magnitudes) or magnitudes.max() < PLAIN:
        return magnitudes
    octaves = np.frexp(magnitudes.astype(np.float64))[1]  # the number of bits
    return np.where(magnitudes < PLAIN, magnitudes, octaves - (PLAIN.bit_length() - PLAIN)).astype(np.int32)


def _encode_gaps(coder: stream.queue.RangeEncoder, gaps: Whole, size: int) -> None:
    model, most = _gap_model(size, len(gaps))
    symbols = gaps
    if gaps.max() >= most:
        ends = (gaps // most + 1).cumsum() - 1
        symbols = np.full(ends[-1] + 1, most)
        symbols[ends] = gaps % most
    coder.encode(symbols.astype(np.int32), model)


def _places(coder: stream.queue.RangeDecoder, taken: int, size: int) -> Whole:
    if taken == size:
        return np.arange(size)
    model, most = _gap_model(size, taken)
    symbols = coder.decode(model, taken)
    missing = int(np.count_nonzero(symbols == most))
    while missing:
        if len(symbols) > taken + size // most:
            raise WireError("a place lies outside its class")
        more = coder.decode(model, missing)
        symbols = np.concatenate([symbols, more])
        missing = int(np.count_nonzero(more == most))
    ends = np.flatnonzero(symbols < most) if len(symbols) > taken else symbols
    places: Whole = symbols.cumsum(dtype=np.int64)
    if len(ends) < len(symbols):
        places = places[ends]
    places += np.arange(taken)
    if places[-1] >= size:
        raise WireError("a place lies outside its class")
    return places


def _symbols(coder: stream.queue.RangeDecoder, occur: Whole, total: int) -> Magnitudes:
    return coder.decode(_symbol_model(occur), total) if len(occur) > 1 else np.zeros(total, np.int32)


def _gap_model(size: int, taken: int) -> tuple[stream.model.Categorical, int]:
    """The table of gaps where ``taken`` of ``size`` places are, and the first gap that is not in it."""
    share = (taken + 0.5) / (size + 1)
    length = min(LONGEST_TABLE, int(TAIL / share) + 2)
    table = np.empty(length + 1)
    table.fill(1 - share)
    table[0] = share
    table = table.cumprod()
    table[length] /= share  # all longer gaps together
    return stream.model.Categorical(table, perfect=False), length


def _symbol_model(occur: Whole) -> stream.model.Categorical:
    return stream.model.Categorical(occur.astype(np.float64), perfect=False)
