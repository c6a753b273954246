"""Whole numbers as short as their entropy: a range coder (Martin 1979), from the `constriction` library.

Two kinds of numbers are coded one after the other into one stream. *Places* are written class by class as the gaps
before each, which are geometrically distributed where within a class all places are equally likely. *Magnitudes* are
written by how often each occurs. Both sides make the tables of probabilities from the same whole numbers, by nothing
but products and quotients of IEEE doubles, so they agree on every machine.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from constriction import stream
from numpy.typing import NDArray

from efl.errors import WireError
from efl.wire.positions import pack_bits, unpack_bits
from efl.wire.reader import Reader, varints

Whole = NDArray[np.int64]

LONGEST_TABLE = 1024  # gaps; a longer one is written as so many free places, and a gap again
TAIL = 12  # a table ends where a gap is e^−12 as likely as none
PLAIN = 16  # magnitudes below are symbols of their own, others one symbol per octave and their low bits
LARGEST = 2**31 - 1
SYMBOLS = PLAIN + LARGEST.bit_length() - PLAIN.bit_length() + 1


class NumberEncoder:
    """Collects numbers; `to_bytes` are those that a `NumberDecoder` reads."""

    def __init__(self) -> None:
        self._coder = stream.queue.RangeEncoder()
        self._counts: list[int] = []
        self._low_bits: list[bytes] = []

    def places(self, places: Whole, bounds: Whole) -> None:
        """Increasing places, in classes as in `pack_places`."""
        gaps = places.astype(np.int32)
        gaps[1:] -= gaps[:-1] + np.int32(1)
        stops = np.searchsorted(places, bounds).tolist() if len(bounds) > 2 else [0, len(places)]
        for (start, stop), (first, end) in zip(pairwise(stops), pairwise(bounds.tolist()), strict=True):
            self._counts.append(stop - start)
            if start < stop < start + end - first:
                gaps[start] = places[start] - first
                self._gaps(gaps[start:stop], end - first)

    def _gaps(self, gaps: NDArray[np.int32], size: int) -> None:
        model, most = _gap_model(size, len(gaps))
        if gaps.max() >= most:
            ends = (gaps // most + 1).cumsum() - 1
            symbols = np.full(ends[-1] + 1, most, dtype=np.int32)
            symbols[ends] = gaps % most
            gaps = symbols
        self._coder.encode(gaps, model)

    def magnitudes(self, magnitudes: NDArray[np.int32]) -> None:
        """Numbers from 0 to `LARGEST`."""
        symbols = magnitudes
        if len(magnitudes) and magnitudes.max() >= PLAIN:
            octaves = np.frexp(magnitudes.astype(np.float64))[1]  # the number of bits
            symbols = np.where(magnitudes < PLAIN, magnitudes, octaves - (PLAIN.bit_length() - PLAIN))
        counts = np.bincount(symbols)
        self._counts += [len(counts), *counts.tolist()]
        if len(counts) > 1:
            self._coder.encode(symbols.astype(np.int32), _symbol_model(counts))
        for symbol in range(PLAIN, len(counts)):
            self._low_bits.append(pack_bits(magnitudes[symbols == symbol], _low_bits_of(symbol)))

    def to_bytes(self) -> bytes:
        """Counts, the coder's stream, low bits."""
        coded = self._coder.get_compressed().astype("<u4").tobytes()
        return b"".join([varints([*self._counts, len(coded) // 4]), coded, *self._low_bits])


def read_numbers(reader: Reader, bounds: Whole) -> tuple[Whole, Whole]:
    """Places, and a magnitude for each, as a `NumberEncoder` wrote them.

    Raises:
        WireError: They are something else; found out before anything longer than the classes is made.
    """
    sizes = np.diff(bounds)
    taken = reader.varints(len(sizes))
    if (np.array(taken, dtype=np.int64) > sizes).any():
        raise WireError("more non-zeros than there are places")
    (symbols,) = reader.varints(1)
    if symbols > SYMBOLS:
        raise WireError("magnitudes out of range")
    counts = np.array(reader.varints(symbols), dtype=np.int64)
    if counts.sum() != sum(taken):
        raise WireError("not one magnitude for each place")
    (length,) = reader.varints(1)
    coder = stream.queue.RangeDecoder(reader.array(length, "<u4").astype(np.uint32))
    classes = zip(taken, sizes.tolist(), bounds.tolist(), strict=False)
    places = [first + _places(coder, count, size) for count, size, first in classes if count]
    found = places[0] if len(places) == 1 else np.concatenate([np.empty(0, np.int64), *places])
    return found, _magnitudes(coder, counts, reader)


def most_number_bytes(n: int, classes: int) -> int:
    """What a `NumberEncoder` never exceeds for n places: a bit and a half each, and what magnitudes can take."""
    return 4 * n + 10 * (classes + SYMBOLS) + 64


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


def _magnitudes(coder: stream.queue.RangeDecoder, counts: Whole, reader: Reader) -> Whole:
    total = int(counts.sum())
    if len(counts) < 2:
        return np.zeros(total, np.int64)
    symbols: Whole = coder.decode(_symbol_model(counts), total).astype(np.int64)
    if len(counts) <= PLAIN:
        return symbols
    magnitudes = symbols.copy()
    for symbol in range(PLAIN, len(counts)):
        chosen, width = symbols == symbol, _low_bits_of(symbol)
        magnitudes[chosen] = unpack_bits(reader, int(np.count_nonzero(chosen)), width).astype(np.int64) | 1 << width
    return magnitudes


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


def _symbol_model(counts: Whole) -> stream.model.Categorical:
    return stream.model.Categorical(counts.astype(np.float64), perfect=False)


def _low_bits_of(symbol: int) -> int:
    """How many bits of a magnitude follow the symbol for its octave."""
    return symbol - PLAIN + PLAIN.bit_length() - 1
