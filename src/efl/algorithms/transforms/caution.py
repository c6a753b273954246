"""Few steps, scaled up to stand for many, are noisy: they count less."""

from typing import TypeVar

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
    """

    kappa: NonNegative = 1.0

    def on_client(self, delta: Tensor, work: LocalWork) -> Tensor:
        """The deltas, shortened."""
        done, most = work.steps_done.unsqueeze(1).to(delta.dtype), work.settings.local_steps
        return delta * torch.where(done < most, confidence(done, most, self.kappa), 1.0)
