"""The signs of an increment: a bit each, or fewer where the signs of a row agree.

Behind a ReLU all weights of a neuron tend to be pushed the same way. So for every row with several non-zeros the usual
sign is written, and how often it is broken, in four levels; which entries break it is then coded like the places of
non-zeros, one class a level.
"""

from __future__ import annotations

import zlib
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire import context
from efl.wire.positions import pack_places, unpack_places
from efl.wire.reader import Reader, varints

Whole = NDArray[np.int64]
Signs = NDArray[np.bool_]

WORTH_MODELLING = 4  # non-zeros of a row
WORTH_CODING = 0.97  # bits a sign; the rest is what the rows' codes take
LEVELS = 4
_EXCEPTIONS = np.array([1 / 16, 1 / 8, 1 / 4])  # the share of exceptions that parts one level from the next


def pack_signs(positive: Signs, positions: Whole, layout: Layout) -> tuple[bool, bytes]:
    """Whether rows are used, and the bytes: the shorter of both ways."""
    plain = np.packbits(positive).tobytes()
    if len(positions) < context.WORTH_SORTING:
        return False, plain
    counts = _row_counts(positions, layout)
    rows = np.flatnonzero(counts >= WORTH_MODELLING)
    if not len(rows):
        return False, plain
    starts = np.append(0, counts.cumsum())
    ups = np.diff(np.append(0, positive.cumsum())[starts])[rows]
    usual = 2 * ups > counts[rows]
    exceptions = np.where(usual, counts[rows] - ups, ups)
    level = np.searchsorted(_EXCEPTIONS, exceptions / counts[rows], side="right")
    levels, bounds, expected = _by_level(counts, rows, level, usual)
    differs = positive != expected
    broken = np.flatnonzero(np.concatenate([differs[levels == one] for one in range(LEVELS + 1)]))
    if context.entropy(np.diff(bounds), np.diff(np.searchsorted(broken, bounds))) > WORTH_CODING * len(positions):
        return False, plain
    squeezed = zlib.compress((level << 1 | usual).astype(np.uint8).tobytes(), 9)
    by_row = varints([len(squeezed)]) + squeezed + pack_places(broken, bounds)
    return (True, by_row) if len(by_row) < len(plain) else (False, plain)


def unpack_signs(reader: Reader, by_row: bool, positions: Whole, layout: Layout) -> Signs:
    """The signs at increasing ``positions``."""
    if not by_row:
        return np.unpackbits(reader.array(-(-len(positions) // 8)), count=len(positions)).view(np.bool_)
    counts = _row_counts(positions, layout)
    rows = np.flatnonzero(counts >= WORTH_MODELLING)
    (length,) = reader.varints(1)
    codes = reader.inflated(length, len(rows))
    if (codes >= 2 * LEVELS).any():
        raise WireError("the signs of a row have an unknown code")
    levels, bounds, expected = _by_level(counts, rows, codes >> 1, (codes & 1).astype(bool))
    broken = np.zeros(len(positions), dtype=bool)
    broken[unpack_places(reader, bounds)] = True
    for level, (start, stop) in enumerate(pairwise(bounds)):
        expected[levels == level] ^= broken[start:stop]
    return expected


def _by_level(
    counts: Whole, rows: Whole, level: NDArray[np.integer], usual: Signs
) -> tuple[NDArray[np.uint8], Whole, Signs]:
    """The level of each entry, those of other rows last; where levels begin and end; the sign expected of each."""
    level_of, sign_of = np.full(len(counts), LEVELS, dtype=np.uint8), np.zeros(len(counts), dtype=bool)
    level_of[rows], sign_of[rows] = level, usual
    levels = np.repeat(level_of, counts)
    bounds = np.append(0, np.bincount(level_of, counts, LEVELS + 1).astype(np.int64).cumsum())
    return levels, bounds, np.repeat(sign_of, counts)


def _row_counts(positions: Whole, layout: Layout) -> Whole:
    """How many of the increasing positions lie in each row of each tensor."""
    return np.diff(np.searchsorted(positions, layout.row_starts, side="left"), append=len(positions))
