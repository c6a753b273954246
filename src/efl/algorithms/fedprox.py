"""FedProx (Li et al. 2018): FedAvg with a proximal term, and with the work of stragglers.

Clients minimise f_k + μ/2 ‖w − w_τ‖². Unlike FedAvg, the paper (sections 3.2 and 5.2) aggregates the partial
solutions of stragglers, unscaled; ``incomplete="drop"`` gives the proximal term alone.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from efl.algorithms.base import LocalWork, Parts
from efl.algorithms.components.elastic import Pull
from efl.algorithms.fedavg import FedAvg
from efl.settings import NonNegative


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg's server; ``proximity`` is the paper's μ."""

    proximity: NonNegative = 0.1
    incomplete: Literal["use", "drop"] = "use"

    @property
    def uses_incomplete(self) -> bool:
        """Partial work counts unless told otherwise."""
        return self.incomplete == "use"

    def local_update(self, work: LocalWork) -> list[Parts]:
        """SGD on f_k + μ/2 ‖w − w_τ‖²; the pull is taken where the step ends: w ← (w − ηg + ημ w_τ) / (1 + ημ)."""
        strength = work.settings.eta * self.proximity
        keep = torch.full_like(work.start, 1 / (1 + strength))
        work.sgd(Pull(None, keep, work.start * (strength / (1 + strength))))
        return self._whole_models(work)
