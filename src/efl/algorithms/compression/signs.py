"""A bit per parameter, both ways: clients send signs, the server the sign of their sum, as a step of fixed length."""

from collections.abc import Sequence

from torch import Tensor

from efl.algorithms.components.reduction import Aggregate
from efl.algorithms.compression.codec import CODECS, Codec, Direction
from efl.algorithms.state import Part, RoundSettings, ServerState
from efl.settings import Positive
from efl.wire import Payload, Signs


@CODECS.register("majority_vote")
class MajorityVote(Codec):
    """Signs of gradients up, a step of ``step``·η against their majority down.

    A bit has no room for a tie, or for a gradient of zero. Both count as positive in even rounds and as negative in
    odd ones, so that they come to nothing.
    """

    step: Positive = 0.2

    @property
    def part(self) -> Part:
        """Votes."""
        return Part(Signs, kind="update", limit="vote")

    def compresses(self, direction: Direction) -> bool:
        """Both ways."""
        return True

    def compress(self, deltas: Tensor, direction: Direction, settings: RoundSettings) -> Sequence[Payload]:
        """The signs of every row."""
        return [signs(row, settings) for row in deltas]

    def encode_down(
        self, aggregate: Aggregate, server: ServerState, settings: RoundSettings
    ) -> tuple[Payload, ServerState]:
        """A step against the majority."""
        return Signs(~signs(aggregate.delta, settings).positive, self.step * settings.eta), server


def signs(vector: Tensor, settings: RoundSettings) -> Signs:
    """The signs of ``vector``; zero is positive in even rounds."""
    return Signs((vector >= 0 if settings.round % 2 == 0 else vector > 0).numpy())
