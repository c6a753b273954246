"""Few steps, scaled up to stand for many, are noisy: they count less."""

from typing import Literal, TypeVar

import torch
from torch import Tensor

from efl.algorithms.transform import TRANSFORMS, Transform
from efl.settings import NonNegative
from efl.training.local_work import LocalWork

Steps = TypeVar("Steps", float, Tensor)


def confidence(done: Steps, most: int, kappa: float) -> Steps:
    """β = (1 + κ)s/(s + κE): how much s of E steps, scaled up to stand for E, count.

    >>> confidence(5.0, 20, 1.0), confidence(20.0, 20, 1.0)
    (0.4, 1.0)
    """
    return (1 + kappa) * done / (done + kappa * most)


@TRANSFORMS.register("caution")
class Caution(Transform):
    """The update of a client that did s of E steps counts `confidence` of itself: 1 for all E, less for few.

    Attributes:
        kappa: κ; 0 leaves everything as it is.
        rounds: In which it acts: ``all``, or those in which clients are ``remembered``. In others weights that sum to 1
            may have it instead; there, shorter updates would mean shorter steps of the model, and nothing else.
    """

    kappa: NonNegative = 1.0
    rounds: Literal["all", "remembered"] = "all"

    def on_client(self, delta: Tensor, work: LocalWork) -> Tensor:
        """The deltas, shortened."""
        if self.rounds == "remembered" and work.settings.clients == 0:
            return delta
        if int(work.steps[-1]) >= work.settings.local_steps:  # the rows with fewest steps come last: all did all
            return delta
        done, most = work.steps_done.unsqueeze(1).to(delta.dtype), work.settings.local_steps
        return delta * torch.where(done < most, confidence(done, most, self.kappa), 1.0)
