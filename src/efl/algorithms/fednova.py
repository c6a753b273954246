"""FedNova (Wang et al. 2020): normalised averaging of unequal work.

Clients run plain SGD, as many steps s_k as they can. Averaging their models as FedAvg does would weigh them by how
much they did, and so minimise another objective. FedNova averages directions, d_k = (w − w_k)/(η s_k), and then takes
τ_eff = Σ p_k s_k steps along their mean:  w ← w − η τ_eff Σ p_k d_k. For clients with momentum s_k is the norm of the
coefficients that their gradients have, a_s = Σ_t (1 − ρ^t)/(1 − ρ).
"""

from collections.abc import Sequence
from math import fsum
from typing import ClassVar

from efl.algorithms.base import RoundSettings, Update
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS


@ALGORITHMS.register("fednova")
class FedNova(FedAvg):
    """FedAvg's clients, whether complete or not, and normalised weights."""

    scalable: ClassVar[bool] = False

    @property
    def uses_incomplete(self) -> bool:
        """Unequal numbers of steps are what it is for."""
        return True

    def weights(self, updates: Sequence[Update], settings: RoundSettings) -> Sequence[float]:
        """p_k τ_eff / s_k: what makes averaged models of averaged directions."""
        shares, worth = super().weights(updates, settings), settings.optimiser.progress
        steps = [update.steps if settings.optimiser.plain else worth(update.steps) for update in updates]
        effective = fsum(share * done for share, done in zip(shares, steps, strict=True))
        return [share * effective / done for share, done in zip(shares, steps, strict=True)]
