"""Several increments as one message: where any of them is non-zero, once, and each of them within that.

Increments tend to hit the same coordinates again and again, so this is shorter than one after the other. Each is
recovered by itself, and adding them in order gives the same model bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.context import Context, cheapest_order, scheme
from efl.wire.coordinate_order import chunks
from efl.wire.limits import MOST_BROADCASTS
from efl.wire.payloads.ternary import Ternary, read_scales
from efl.wire.positions import pack_places, unpack_places
from efl.wire.reader import Buffer, Reader, opened, sealed, varints


def pack_merged(increments: Sequence[Ternary], context: Context) -> bytes:
    """The bytes of all increments together, in order."""
    every = np.sort(np.concatenate([increment.positions for increment in increments]))
    union = every[np.flatnonzero(np.diff(every, prepend=-1))]
    number, bounds, places, _ = cheapest_order(union, context)
    pieces = [varints([len(increments), number]), pack_places(places, bounds)]
    within = np.array([0, len(union)])
    for increment in increments:
        ranks = np.searchsorted(union, increment.positions)
        pieces.append(bytes([len(increment.scales) == 1]) + increment.scales.astype("<f4").tobytes())
        pieces += [pack_places(ranks, within), np.packbits(increment.positive).tobytes()]
    return sealed(b"".join(pieces))


def unpack_merged(blob: Buffer, context: Context) -> tuple[int, Iterator[Ternary]]:
    """How many increments there are in ``blob``, and they themselves, each decoded when it is asked for.

    Raises:
        WireError: It is anything else; what comes late in ``blob`` may be found out late.
    """
    reader = Reader(opened(blob))
    count, number = reader.varints(2)
    if not 0 < count <= most_merged(context.layout):
        raise WireError(f"{count} increments in one message")
    return count, _increments(reader, count, number, context)


def _increments(reader: Reader, count: int, number: int, context: Context) -> Iterator[Ternary]:
    try:
        order, bounds = scheme(number, context)
        union = order.position(unpack_places(reader, bounds))
        union.sort()
        within = np.array([0, len(union)])
        for _ in range(count):
            scales = read_scales(reader, context, one=bool(reader.byte()))
            ranks = unpack_places(reader, within)
            signs = np.unpackbits(reader.array(-(-len(ranks) // 8)), count=len(ranks))
            for piece in chunks(len(ranks)):  # in place: they may be as long as the vector
                ranks[piece] = union[ranks[piece]]
            yield Ternary(context.layout, ranks, signs.view(np.bool_), scales)
        reader.end()
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"no increments: {error!r}") from error


def most_merged(layout: Layout) -> int:
    """The most increments that are merged; honest ones are not so short that more would pay."""
    return min(MOST_BROADCASTS, max(64, layout.n // 500))
