"""FedNova (Wang et al. 2020): normalised averaging of unequal work.

Clients run plain SGD, as many steps s_k as they can. Averaging their models as FedAvg does would weigh them by how
much they did, and so minimise another objective. FedNova averages directions, d_k = (w − w_k)/(η s_k), and then takes
τ_eff = Σ p_k s_k steps along their mean:  w ← w − η τ_eff Σ p_k d_k.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from efl.algorithms.base import Contribution
from efl.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedNova(FedAvg):
    """FedAvg's clients, whether complete or not, and normalised weights."""

    @property
    def uses_incomplete(self) -> bool:
        """Unequal numbers of steps are what it is for."""
        return True

    def _weights(self, contributions: Sequence[Contribution]) -> list[float]:
        """p_k τ_eff / s_k: what makes averaged models of averaged directions."""
        shares, steps = super()._weights(contributions), [contribution.steps_done for contribution in contributions]
        effective = fsum(share * done for share, done in zip(shares, steps, strict=True))
        return [share * effective / done for share, done in zip(shares, steps, strict=True)]
