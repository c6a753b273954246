"""FedPer, FedRep and FedBN: some layers stay with each client and never travel.

FedPer (Arivazhagan et al. 2019) keeps the last layers, and trains them together with the others, step by step. FedRep
(Collins et al. 2021) trains first the client's own layers with the common ones held, then the common ones with its own
held. FedBN (Li et al. 2021) keeps all of BatchNorm: scale, shift and statistics. Apart from that all three are FedAvg.

Any other algorithm can be run so: [model] ``personal`` names what stays with clients (docs/models.md).
"""

from collections.abc import Sequence
from typing import ClassVar

from efl.algorithms.base import LocalWork, Uploads
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.models import LAST_LAYER
from efl.settings import Probability
from efl.training.step import PLAIN

BATCH_NORM = ("BatchNorm*", "SyncBatchNorm")


@ALGORITHMS.register("fedper")
class FedPer(FedAvg):
    """``layers`` are patterns of what stays with each client; by default the last layer."""

    layers: tuple[str, ...] = (LAST_LAYER,)

    @property
    def personal_layers(self) -> Sequence[str]:
        """The paper's personalisation layers."""
        return self.layers


@ALGORITHMS.register("fedrep")
class FedRep(FedPer):
    """``head`` is the share of the E steps that go to a client's own layers, before the common ones."""

    search_space: ClassVar[SearchSpace] = {"head": Range(0.1, 0.9, log=False)}
    head: Probability = 0.5

    @property
    def personalised(self) -> bool:
        """A client's own layers after the steps that go to them, and the common ones after the others."""
        return True

    def local_update(self, work: LocalWork) -> Uploads:
        """Steps on a client's own layers, then on the common ones; where it has none, all steps are common."""
        own = round(self.head * work.settings.local_steps) if work.rows.personal.shape[1] else 0
        optimiser, eta = work.settings.optimiser, work.settings.eta
        move = None if optimiser.plain else optimiser.start(work.W, eta, work.settings.layout)
        for step, (active, gradient) in enumerate(work.gradients(moving=True)):
            work.moves_personal = step < own
            if step >= own:
                PLAIN.take(work.W[:active], gradient, eta, move)
        return {}


@ALGORITHMS.register("fedbn")
class FedBN(FedAvg):
    """FedAvg whose BatchNorm layers stay with each client; FedAvg itself where there are none."""

    @property
    def personal_layers(self) -> Sequence[str]:
        """Scale, shift and statistics."""
        return BATCH_NORM
