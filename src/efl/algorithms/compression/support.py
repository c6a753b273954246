"""One support for everybody: in each round clients send the values of the same entries, drawn by the round's number.

That is the form that secure aggregation needs: uploads are vectors of one length whose sum is the sum of the updates,
without positions, steps or scales of a client's own. What the support leaves out needs `ErrorFeedback`, or is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from efl.algorithms.compression.codec import CODECS, Codec, Direction
from efl.algorithms.state import Part, RoundSettings
from efl.settings import Density
from efl.wire import OnSupport, Payload
from efl.wire.payloads.support import support


@CODECS.register("shared_support")
class SharedSupport(Codec):
    """The values of a share ``density`` of the entries, the same for all clients, other ones every round; both ways."""

    density: Density = 0.05

    @property
    def part(self) -> Part:
        """Values on the support of this round."""
        return Part(OnSupport, kind="update", limit="update", fits=self._fits)

    def compresses(self, direction: Direction) -> bool:
        """Both ways."""
        return True

    def compress(self, deltas: Tensor, direction: Direction, settings: RoundSettings) -> Sequence[Payload]:
        """Every row where the support is."""
        n, draw = deltas.shape[1], settings.round
        at = support(n, self._count(n), draw)
        return [OnSupport(n, draw, row[at]) for row in deltas.numpy()]

    def _count(self, n: int) -> int:
        return max(1, round(self.density * n))

    def _fits(self, sent: Payload, settings: RoundSettings) -> bool:
        right = isinstance(sent, OnSupport) and sent.draw == settings.round
        return right and len(sent.values) == self._count(settings.layout.n)
