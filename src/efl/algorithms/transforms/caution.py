"""Few steps, scaled up to stand for many, are noisy: they count less."""

from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor

from efl.algorithms.components.weights import self_normalised
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


def cautious(shares: Sequence[float], steps: Sequence[int], most: int, kappa: float) -> list[float]:
    """Weights in proportion to shares, each times its `confidence`, that sum to that of all steps of the round.

    So they sum to 1, but where in all of a round less was done than one complete client does.

    >>> cautious([0.5, 0.25], [20, 10], 20, 0.0), cautious([0.5, 0.5], [20, 5], 20, 1.0), cautious([0.5], [5], 20, 1.0)
    ([0.6666666666666666, 0.3333333333333333], [0.7142857142857143, 0.28571428571428575], [0.4])
    """
    if kappa == 0:
        return self_normalised(shares)
    betas = [confidence(float(done), most, kappa) for done in steps]
    weights = self_normalised([share * beta for share, beta in zip(shares, betas, strict=True)])
    if (done := sum(steps)) >= most:
        return weights
    return [weight * confidence(float(done), most, kappa) for weight in weights]


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
