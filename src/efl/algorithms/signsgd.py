"""signSGD with majority vote (Bernstein et al. 2018, 2019): a bit per parameter, both ways.

A client sends the signs of its gradient at w, here of the mean over all mini-batches it has time for; it does not
train. The server takes the majority in every coordinate and everybody steps that way:  w ← w − δ sign(Σ sign(g_k)).
"""

from collections.abc import Sequence
from typing import ClassVar

from efl.algorithms.base import LocalWork, RoundSettings, Update, Uploads
from efl.algorithms.compression.codec import Codec
from efl.algorithms.compression.signs import MajorityVote
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.settings import Positive


@ALGORITHMS.register("signsgd")
class SignSGD(FedAvg):
    """``step`` is what every parameter moves in a round, in units of η: δ = step · η."""

    scalable: ClassVar[bool] = False
    search_space: ClassVar[SearchSpace] = {"step": Range(0.02, 2.0)}
    step: Positive = 0.2

    @property
    def uses_incomplete(self) -> bool:
        """A gradient over fewer samples is a gradient."""
        return True

    @property
    def default_codec(self) -> Codec:
        """Signs up, their majority down."""
        return MajorityVote(self.step)

    def local_update(self, work: LocalWork) -> Uploads:
        """The gradient at w over all mini-batches, of which only signs are sent."""
        work.delta = work.gradient_sum()
        return {}

    def weights(self, updates: Sequence[Update], settings: RoundSettings) -> Sequence[float]:
        """One client, one vote."""
        return [1.0] * len(updates)
