"""Several increments as one message: where any of them is non-zero, once, and each of them within that.

Increments tend to hit the same coordinates again and again, so this is shorter than one after the other. Each is
recovered by itself, and adding them in order gives the same model bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from efl.errors import WireError
from efl.wire.context import Context, arranged, scheme
from efl.wire.limits import MOST_BROADCASTS
from efl.wire.payload import Ternary, read_scales
from efl.wire.positions import pack_places, unpack_places
from efl.wire.reader import Reader, opened, sealed, varints


def pack_merged(increments: Sequence[Ternary], context: Context) -> bytes:
    """The bytes of all increments together, in order."""
    every = np.sort(np.concatenate([increment.positions for increment in increments]))
    union = every[np.flatnonzero(np.diff(every, prepend=-1))]
    number, bounds, places, _ = arranged(union, context)
    pieces = [varints([len(increments), number]), pack_places(places, bounds)]
    within = np.array([0, len(union)])
    for increment in increments:
        ranks = np.searchsorted(union, increment.positions)
        pieces.append(bytes([len(increment.scales) == 1]) + increment.scales.astype("<f4").tobytes())
        pieces += [pack_places(ranks, within), np.packbits(increment.positive).tobytes()]
    return sealed(b"".join(pieces))


def unpack_merged(blob: bytes, context: Context) -> list[Ternary]:
    """The increments in ``blob``; `WireError` if it is anything else."""
    try:
        return _increments(Reader(opened(blob)), context)
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"no increments: {error!r}") from error


def _increments(reader: Reader, context: Context) -> list[Ternary]:
    count, number = reader.varints(2)
    if count > MOST_BROADCASTS:
        raise WireError(f"{count} increments in one message")
    arrangement, bounds = scheme(number, context)
    union = np.sort(arrangement.position(unpack_places(reader, bounds)))
    within = np.array([0, len(union)])
    increments: list[Ternary] = []
    for _ in range(count):
        scales = read_scales(reader, context, one=bool(reader.byte()))
        ranks = unpack_places(reader, within)
        signs = np.unpackbits(reader.array(-(-len(ranks) // 8)), count=len(ranks))
        increments.append(Ternary(context.layout, union[ranks], signs.astype(bool), scales))
    reader.end()
    return increments
