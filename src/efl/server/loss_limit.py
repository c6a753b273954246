"""How large a training loss may be before it counts as diverged."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median_low

MAX_LOSS = 1e4  # where a loss is counted in nats, a mean that is larger has diverged
MAX_GROWTH = 1e3  # the same for other losses, in terms of those of the first round


@dataclass(eq=False)
class LossLimit:
    """The largest training loss that is believed.

    Losses in nats, such as cross-entropy, are of the same size in every run. Others are in the units of the targets:
    there ``first``, the largest loss of the first round with replies, says what is usual.

    >>> limit = LossLimit(in_nats=False)
    >>> limit.note([7e4, 2e4])
    >>> limit.most
    70000000.0
    """

    in_nats: bool = True
    first: float | None = None

    @property
    def most(self) -> float:
        """A loss beyond it has diverged."""
        if self.in_nats:
            return MAX_LOSS
        return math.inf if self.first is None else max(MAX_LOSS, MAX_GROWTH * self.first)

    def note(self, losses: Collection[float]) -> None:
        """A round came to these losses."""
        if self.first is None and losses:
            self.first = max(map(abs, losses))

    def beyond_others(self, losses: Mapping[int, float]) -> list[int]:
        """In the first round, whose losses are far beyond everybody else's: one client must not set the limit."""
        if self.in_nats or self.first is not None or not losses:
            return []
        usual = max(MAX_LOSS, MAX_GROWTH * median_low([abs(loss) for loss in losses.values()]))
        return [client for client, loss in losses.items() if abs(loss) > usual]
