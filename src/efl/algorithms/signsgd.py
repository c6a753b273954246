"""signSGD with majority vote (Bernstein et al. 2018, 2019): a bit a parameter, both ways.

A client sends the signs of its gradient at w, here of the mean over all mini-batches it has time for; it does not
train. The server takes the majority in every coordinate and everybody steps that way:  w ← w − δ sign(Σ sign(g_k)).

A bit has no room for a tie, or for a gradient of zero. Both count as positive in even rounds and as negative in odd
ones, so that they come to nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, RoundSettings, ServerState, UploadTypes
from efl.algorithms.components.reduction import averaged_increment
from efl.algorithms.fedavg import FedAvg
from efl.settings import Positive
from efl.wire import Payload, Signs


@dataclass(frozen=True)
class SignSGD(FedAvg):
    """``step`` is what every parameter moves in a round, in units of η: δ = step · η."""

    step: Positive = 0.2

    @property
    def upload_types(self) -> UploadTypes:
        """Signs."""
        return {"update": Signs}

    @property
    def uses_incomplete(self) -> bool:
        """A gradient over fewer samples is a gradient."""
        return True

    def local_update(self, work: LocalWork) -> list[Parts]:
        """The gradient at w over all mini-batches, of which only signs are sent."""
        total = torch.zeros_like(work.W)
        for active, gradient in work.descent():
            total[:active] += gradient
        return [{"update": signs(row, work.settings)} for row in total.cpu()]

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """One client, one vote."""
        if not contributions:
            return server, None
        ballots = [contribution.parts["update"] for contribution in contributions]
        votes = averaged_increment(server.w, ballots, [1.0] * len(ballots))
        return server, Signs(~signs(votes, settings).positive, self.step * settings.eta)


def signs(vector: Tensor, settings: RoundSettings) -> Signs:
    """The signs of ``vector``; zero is positive in even rounds."""
    return Signs((vector >= 0 if settings.round % 2 == 0 else vector > 0).numpy())
