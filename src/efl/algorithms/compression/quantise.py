"""Rounding to a byte per parameter: to the nearest of 127 levels each side of zero, up to the largest in its tensor."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from efl.algorithms.compression.codec import CODECS, Codec, Direction
from efl.algorithms.state import Part, RoundSettings
from efl.wire import Layout, Payload, Quantised


@CODECS.register("eight_bit")
class EightBit(Codec):
    """A byte per parameter up, whole models down."""

    @property
    def part(self) -> Part:
        """A quantised increment."""
        return Part(Quantised, kind="update", limit="update")

    def compresses(self, direction: Direction) -> bool:
        """Uploads only."""
        return direction == "up"

    def compress(self, deltas: Tensor, direction: Direction, settings: RoundSettings) -> Sequence[Payload]:
        """Every row, tensor by tensor."""
        return quantise(deltas, settings.layout)


def quantise(matrix: Tensor, layout: Layout) -> list[Quantised]:
    """Each row of ``matrix`` (C, n), tensor by tensor.

    >>> import torch
    >>> sent = quantise(torch.tensor([[127.0, -2.4, 0.5]]), Layout.flat(3))[0]
    >>> sent.codes.tolist(), sent.values.tolist()
    ([127, -2, 0], [127.0, -2.0, 0.0])
    """
    sizes = [stop - start for start, stop in layout.segments]
    starts = [start for start, _ in layout.segments]
    rows: list[Quantised] = []
    for row in matrix.numpy():
        scales = np.maximum.reduceat(np.abs(row), starts)
        steps = np.repeat(np.where(scales > 0, scales, 1) / 127, sizes)
        rows.append(Quantised(layout, np.rint(row / steps).astype(np.int8), scales))
    return rows
