"""FedProx (Li et al. 2018): FedAvg with a proximal term, and with the work of stragglers.

Clients minimise f_k + μ/2 ‖w − w_τ‖². Unlike FedAvg, the paper (sections 3.2 and 5.2) aggregates the partial
solutions of stragglers, unscaled; ``incomplete="drop"`` gives the proximal term alone.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch

from efl.algorithms.base import LocalWork, Step
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.algorithms.transform import Transform
from efl.settings import NonNegative


@ALGORITHMS.register("fedprox")
class FedProx(FedAvg):
    """FedAvg's server; ``proximity`` is the paper's μ."""

    search_space: ClassVar[SearchSpace] = {"proximity": Range(1e-3, 1.0)}
    proximity: NonNegative = 0.1
    incomplete: Literal["use", "drop"] = "use"

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """Partial solutions count as they are."""
        return ()

    def local_step(self, work: LocalWork) -> Step:
        """The pull is taken where the step ends: w ← (w − ηg + ημ w_τ) / (1 + ημ)."""
        a = work.settings.eta * self.proximity
        return Step(keep=torch.full_like(work.start, 1 / (1 + a)), shift=work.start * (a / (1 + a)))
