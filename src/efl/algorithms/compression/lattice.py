"""A stochastic lattice: entries rounded to whole multiples of a step, up without bias, down to the nearest.

A client with the update x sends the codes ⌊x/δ + u⌋ with u uniform on [0, 1), whose mean is x/δ: nothing must be kept
back, and the noise of independent clients averages out. Its step δ = a·√(‖x‖²/n) follows the update's size.

The server's step is a power of two near b times the usual size of an update, and changes only where that has moved by
more than `HYSTERESIS` octaves. The model itself lies on a fine grid, whose step `GRID` says: sums of broadcasts are
exact in float32, in whatever order, so that a client that missed several is sent their sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, frexp, inf, log2, sqrt
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.components.admission import Increment
from efl.algorithms.components.reduction import Aggregate
from efl.algorithms.compression.codec import CODECS, Codec, Direction, OnSent
from efl.algorithms.state import Part, RoundSettings, ServerState
from efl.rng import Purpose
from efl.settings import Positive
from efl.training.local_work import LocalWork
from efl.wire import Lattice, Layout, Payload
from efl.wire.payloads.lattice import LARGEST_STEP
from efl.wire.sparse import rounded_randomly, squared_length

STEP = "step"  # of the server: the usual size of an update, the step down, the grid
ROOM = 16  # times the largest weight at the start, or 1: what a weight can grow to
MANTISSA = 24  # bits of a float32
HYSTERESIS = 0.75  # octaves
STEP_UP, STEP_DOWN = 6.0, 2.0
FORGETTING = 0.1  # how much the size of the last round's updates counts


@CODECS.register("lattice")
class StochasticLattice(Codec):
    """Whole multiples of a step, both ways.

    Attributes:
        step_up: a, the step of an upload in units of the root mean square of its entries; None makes it 6, times the
            coarsening that a byte budget asks for.
        step_down: b, the step of a broadcast in the same units; None makes it 2·√(1/q), times its own coarsening, where
            q is the probability that a client is sampled: what one broadcast leaves out others bring until it returns.
        rounding: ``stochastic`` up, or to the ``nearest``, which needs a residual to lose nothing.
    """

    step_up: Positive | None = None
    step_down: Positive | None = None
    rounding: Literal["stochastic", "nearest"] = "stochastic"

    @property
    def part(self) -> Part:
        """A lattice increment."""
        return Part(Lattice, kind="update", limit="update")

    def compresses(self, direction: Direction) -> bool:
        """Both ways."""
        return True

    def start(self, w: Tensor) -> Tensor:
        """The model on the grid."""
        grid = grid_of(w)
        return torch.round(w / grid) * grid

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """No size yet, no step; the grid."""
        return {STEP: torch.tensor([0.0, 0.0, grid_of(w)])}

    def encode_up(self, work: LocalWork, on_sent: OnSent | None = None) -> Sequence[Payload]:
        """Codes for each row; the random numbers are the client's own."""
        total = work.delta if on_sent is None else on_sent(work.delta, work)
        if self.rounding == "nearest":
            return self.compress(total, "up", work.settings)
        rows, layout = zip(total.numpy(), work.streams(Purpose.ROUNDING), strict=True), work.settings.layout
        a = self._a(work.settings)
        return [_rounded(row, a, layout, rng) for row, rng in rows]

    def compress(self, deltas: Tensor, direction: Direction, settings: RoundSettings) -> Sequence[Payload]:
        """Every row rounded to the nearest multiples of a step of its own."""
        return [_rounded(row, self._a(settings), settings.layout) for row in deltas.numpy()]

    def fidelity(self, sent: Payload, settings: RoundSettings) -> float:
        """‖x‖²/‖δ·codes‖², at most 1: both sides can tell, for ‖x‖² is n(δ/a)²."""
        if not isinstance(sent, Lattice) or self.rounding == "nearest":
            return 1.0
        squares = sent.squares * self._a(settings) ** 2
        return min(1.0, settings.layout.n / squares) if squares else 1.0

    def encode_down(
        self, aggregate: Aggregate, server: ServerState, settings: RoundSettings
    ) -> tuple[Payload, ServerState]:
        """Codes of the nearest multiples; none takes a weight off the grid."""
        usual, step, grid = server.tensors[STEP].tolist()
        size = self._size(aggregate, self._a(settings))
        usual = size if usual == 0 else (1 - FORGETTING) * usual + FORGETTING * size
        b = self.step_down or STEP_DOWN * sqrt(1 / aggregate.participation) * settings.coarsening_down
        step = next_step(step, b * usual, grid)
        bound, delta = grid * 2 ** (MANTISSA - 1), aggregate.delta.numpy()
        w = server.w.numpy()
        delta = np.clip(delta, -bound - w, bound - w)
        payload = Lattice.of(settings.layout, np.rint(delta / np.float32(step)).astype(np.int32), step)
        return payload, server.having(**{STEP: torch.tensor([usual, step, grid])})

    def _a(self, settings: RoundSettings) -> float:
        return self.step_up or STEP_UP * settings.coarsening

    def _size(self, aggregate: Aggregate, a: float) -> float:
        """The mean size of the updates, by their weights; the aggregate's own where clients send no lattices."""
        sent = [
            (one.step / a if isinstance(one, Lattice) else root_mean_square(one.values), weight)
            for one, weight in aggregate.contributions
            if isinstance(one, Increment)
            or (isinstance(one, Lattice) and len(one.positions))  # else its step says nothing
        ]
        total = sum(weight for _, weight in sent)
        if total > 0:
            return sum(size * weight for size, weight in sent) / total
        return root_mean_square(aggregate.delta.numpy())


def grid_of(w: Tensor) -> float:
    """The step of the grid on which weights `ROOM` times as large as the largest are still exact."""
    _, exponent = frexp(max(1.0, float(w.abs().max())))
    return 2.0 ** (exponent + ROOM.bit_length() - 1 - (MANTISSA - 1))


def next_step(step: float, wanted: float, grid: float) -> float:
    """The power of two nearest to what is wanted, but as it was while that is not far off; at least two grid steps.

    >>> next_step(0.25, 0.4, 2**-18), next_step(0.25, 0.45, 2**-18), next_step(0.0, 1e-9, 0.5)
    (0.25, 0.5, 1.0)
    """
    if wanted == 0 or wanted == inf:
        return max(step, 2 * grid)
    if step > 0 and abs(log2(wanted) - log2(step)) <= HYSTERESIS:
        return step
    return max(2.0 ** ceil(log2(wanted) - 0.5), 2 * grid)


def root_mean_square(row: NDArray[np.float32]) -> float:
    """√(‖x‖²/n)."""
    return sqrt(squared_length(row) / len(row))


def _rounded(row: NDArray[np.float32], a: float, layout: Layout, rng: np.random.Generator | None = None) -> Lattice:
    step = np.float32(a * root_mean_square(row))
    if not 0 < step <= LARGEST_STEP:  # nothing, or more than can be sent
        return Lattice.of(layout, np.zeros(layout.n, np.int32), 1.0)
    if rng is None:
        return Lattice.of(layout, np.rint(row / step).astype(np.int32), float(step))
    return Lattice(layout, *rounded_randomly(row, step, rng), float(step))
