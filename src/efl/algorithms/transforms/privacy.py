"""User-level differential privacy: what leaves the server hides whether any one client took part at all.

With S the clients that replied, x_k what the server decoded of client k, and m the expected size of a cohort, the
server releases

    Δ = (Σ_{k ∈ S} clip(x_k, C) + z C ξ) / m,   ξ standard normal,   clip(x, C) = x · min(1, C/‖x‖)

and nothing else (DP-FedAvg, McMahan et al. 2018). A client more or less changes the sum by C at most: weights are
fixed, m and the probability of being sampled are settings, and what was rounded or forged is clipped as it is decoded.
The next model, its broadcast and every server optimiser follow from Δ. `efl.runs.privacy` accounts for the rounds.

With ``quantile`` γ the norm C follows that quantile of the lengths (Andrew et al. 2021): with b_k whether ‖x_k‖ ≤ C,
b = ½ + (Σ (b_k − ½) + σ_b ξ')/m is released, too, and C ← C exp(−η (b − γ)). A client changes that sum by ½ at most, so
both together cost as much as one sum with z if the noise of Δ is z' = (z⁻² − (2σ_b)⁻²)^(−½).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, sqrt
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field as Constraint
from torch import Tensor

from efl.algorithms.components.reduction import delta_of
from efl.algorithms.state import RoundSettings, ServerState, Update
from efl.algorithms.transform import TRANSFORMS, Release, Transform
from efl.algorithms.transforms.clipping import shortened
from efl.errors import UserError
from efl.rng import Purpose, stream
from efl.settings import Positive
from efl.training.local_work import LocalWork

NORM = "privacy_norm"  # C, where it follows a quantile
ROUNDING = 1e-12  # by which less than C is aimed at, so that rounding does not exceed it
BITS_SHARE = 1 / 20  # σ_b as a share of the cohort
BITS_LEAST = 2.0  # and at least so many times z: Δ then has 3 % more noise at most
Open = Annotated[float, Constraint(gt=0, lt=1)]
Noisy = NDArray[np.float64]


@TRANSFORMS.register("privacy")
class Privacy(Transform):
    """Clip, add up with fixed weights, add noise; see the module.

    Attributes:
        epsilon: ε, the budget: a run ends before it is exceeded. None for no budget.
        delta: δ, less than one over the number of clients.
        noise_multiplier: z; None finds the least with which all rounds stay within ε.
        norm: C; where it follows a quantile, the first one.
        quantile: γ, which share of the updates is to be shorter than C; None leaves C as it is.
        norm_rate: η, how quickly C follows.
        bits_noise: σ_b; None for a twentieth of the cohort, or twice z, if that is more.
    """

    epsilon: Positive | None = None
    delta: Open = 1e-5
    noise_multiplier: Positive | None = None
    norm: Positive = 1.0
    quantile: Open | None = None
    norm_rate: Positive = 0.2
    bits_noise: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is None and self.noise_multiplier is None:
            raise UserError("privacy: say epsilon, such as 8.0, or noise_multiplier")

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """The first norm, where it is to follow."""
        return {} if self.quantile is None else {NORM: torch.tensor([self.norm])}

    def on_sent(self, total: Tensor, work: LocalWork) -> Tensor:
        """Residual included, no longer than C; a norm that follows a quantile is known to the server alone."""
        return shortened(total, self.norm) if self.quantile is None else total

    @property
    def release(self) -> Release | None:
        """In place of the weighted sum."""
        return self.released

    def released(
        self, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Tensor, ServerState]:
        """Δ, and the norm of the next round."""
        norm, cohort = self.norm_of(server), self._cohort(settings)
        rng = stream(settings.seed, Purpose.NOISE, settings.round)
        noise = self.update_noise(cohort) * norm * rng.standard_normal(len(server.w))
        total, bits = clipped_sum(updates, server.w, norm)
        if self.quantile is not None:
            bits += self._bits_noise(cohort) * float(rng.standard_normal())
            followed = norm * exp(-self.norm_rate * (0.5 + bits / cohort - self.quantile))
            server = server.having(**{NORM: torch.tensor([followed])})
        return torch.from_numpy((total + noise) / cohort).float(), server

    def norm_of(self, server: ServerState) -> float:
        """C of this round."""
        return self.norm if self.quantile is None else float(server.tensors[NORM])

    def update_noise(self, cohort: int) -> float:
        """z, or, where the norm follows a quantile, z'."""
        z = self._z
        if self.quantile is None:
            return z
        bits = 2 * self._bits_noise(cohort)
        if bits <= z:
            raise UserError(f"privacy: bits_noise = {bits / 2:.3g} spends more than all; set it above {z / 2:.3g}")
        return 1 / sqrt(z**-2 - bits**-2)

    @property
    def _z(self) -> float:
        if self.noise_multiplier is None:
            raise UserError("privacy: only a run can find noise_multiplier; say it where you run rounds yourself")
        return self.noise_multiplier

    def _bits_noise(self, cohort: int) -> float:
        return self.bits_noise or max(BITS_SHARE * cohort, BITS_LEAST * self._z)

    @staticmethod
    def _cohort(settings: RoundSettings) -> int:
        if not settings.cohort:
            raise UserError("privacy: settings.cohort should be how many clients a round samples on average")
        return settings.cohort


def clipped_sum(updates: Sequence[Update], w: Tensor, norm: float) -> tuple[Noisy, float]:
    """Σ clip(x_k, C) and Σ (b_k − ½): an update more or less changes them by ``norm`` and a half at most."""
    total, bits = np.zeros(len(w)), 0.0
    for update in updates:
        decoded = delta_of(update.delta, w).numpy().astype(np.float64)
        length = float(np.linalg.norm(decoded))
        bits += 0.5 if length <= norm else -0.5
        if length <= norm:
            total += decoded
        elif np.isfinite(length):
            total += (1 - ROUNDING) * norm / length * decoded
    return total, bits
