"""Few steps, scaled up to stand for many, are noisy: they count less."""

import torch
from torch import Tensor

from efl.algorithms.transform import TRANSFORMS, Transform
from efl.settings import NonNegative
from efl.training.local_work import LocalWork


@TRANSFORMS.register("caution")
class Caution(Transform):
    """The update of a client that did s of E steps counts (1 + κ)s/(s + κE) of itself: 1 for all E, less for few.

    Attributes:
        kappa: κ; 0 leaves everything as it is.
    """

    kappa: NonNegative = 1.0

    def on_client(self, delta: Tensor, work: LocalWork) -> Tensor:
        """The deltas, shortened."""
        done, most = work.steps_done.unsqueeze(1).to(delta.dtype), work.settings.local_steps
        return delta * torch.where(done < most, (1 + self.kappa) * done / (done + self.kappa * most), 1.0)
