"""Theorem 1: how fast, and how far, the model comes near the optimum.

With the learning rate below, E‖w_τ − w*‖² ≤ C_τ/(τE + γ)² + H_τ·J/(τE + γ). The first term falls like 1/τ. The second
stays as long as clients take part unequally: H_τ counts the rounds in which they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from efl.errors import UserError
from efl.theory.constants import Array, Constants
from efl.theory.participation import Participation


def learning_rate(round_: int, local_steps: int, convexity: float, gamma: float, work: float) -> float:
    """η_τ = 16E / (μ((τ+1)E + γ)·E[Σ_k p_τ^k s_τ^k]).

    >>> learning_rate(round_=0, local_steps=4, convexity=2, gamma=12, work=4)
    0.5
    """
    return 16 * local_steps / (convexity * ((round_ + 1) * local_steps + gamma) * work)


def offset(local_steps: int, convexity: float, smoothness: float, cap: float, least_work: float) -> float:
    """γ, which keeps the first learning rates small; ``least_work`` is min_τ E[Σ_k p_τ^k s_τ^k].

    >>> offset(local_steps=4, convexity=2, smoothness=4, cap=1, least_work=4)     # max(16, 128)
    128.0
    """
    drift = 4 * local_steps**2 * cap
    curvature = 32 * local_steps * (1 + cap) * smoothness / convexity
    return max(drift, curvature) / least_work


def expected_B(constants: Constants, fleet: Participation, cap: float, rounding: float = 0.0) -> float:
    """E[B_t], what a round adds to the variance: noise, unlike clients, drift over E steps, uneven weights, rounding.

    (Σ_k p_t^k − 2)₊ is bounded by its largest value, (θ − 2)₊, so that only moments of single clients are needed.
    Stochastic ``rounding`` of relative variance ω adds ω‖Δ_k‖² ≤ ωη²s²G² to each update, and s² ≤ Es.
    """
    L, mu, E = constants.smoothness, constants.convexity, fleet.local_steps
    square = constants.gradient**2
    noise = fleet.squared_work @ np.square(constants.noise)
    unlike = 2 * (2 + cap) * L * (fleet.work @ np.array(constants.divergence))
    drift = (2 + mu / (2 * (1 + cap) * L)) * E * (E - 1) * square * fleet.total_work * (1 + cap * max(cap - 2, 0.0))
    uneven = 2 * E * square * (fleet.squared_work / np.array(constants.shares)).sum()
    rounded = rounding * E * square * fleet.squared_work.sum()
    return float(noise + unlike + drift + uneven + rounded)


@dataclass(frozen=True, eq=False)
class Theorem1:
    """The theorem for a problem and a fleet; ``fleet`` has one law for each round, and the last holds from then on.

    >>> pair = Constants(smoothness=4, convexity=2, gradient=1, noise=(1, 1), divergence=(1, 1), shares=(0.5, 0.5))
    >>> theorem = Theorem1(pair, [Participation.complete(pair.shares, local_steps=4)], distance=1)
    >>> theorem.gamma, theorem.J, theorem.bound(0)
    (128.0, 64.0, 1.0)
    """

    constants: Constants
    fleet: Sequence[Participation]
    distance: float  # E‖w_0 − w*‖²
    rounding: float = 0.0  # ω, the relative variance of an upload that is right on average

    def __post_init__(self) -> None:
        if not self.fleet:
            raise UserError("fleet: needs the law of at least one round")
        if any(law.total_work == 0 for law in self._laws):
            raise UserError("fleet: a round in which no client ever does a step has no learning rate")

    @property
    def local_steps(self) -> int:
        """E."""
        return self.fleet[0].local_steps

    @cached_property
    def cap(self) -> float:
        """θ over all rounds."""
        return max(law.cap for law in self._laws)

    @cached_property
    def gamma(self) -> float:
        """γ."""
        constants, least = self.constants, min(law.total_work for law in self._laws)
        return offset(self.local_steps, constants.convexity, constants.smoothness, self.cap, least)

    @cached_property
    def J(self) -> float:
        """The price of unequal participation: max_τ 32E·Σ_k E[p_τ^k s_τ^k]·D_k / (μ·E[Σ_k p_τ^k s_τ^k])."""
        unlike = max(float(law.work @ np.array(self.constants.divergence)) / law.total_work for law in self._laws)
        return 32 * self.local_steps * unlike / self.constants.convexity

    def learning_rate(self, round_: int) -> float:
        """η_τ."""
        return learning_rate(
            round_, self.local_steps, self.constants.convexity, self.gamma, self.law(round_).total_work
        )

    def C(self, round_: int) -> float:
        """C_τ = max{γ²·E‖w_0 − w*‖², (16E/μ)²·Σ_{t<τ} E[B_t]/E[Σ_k p_t^k s_t^k]²}."""
        return float(self._C(round_)[-1])

    def H(self, round_: int) -> int:
        """H_τ: rounds before τ in which E[p_t^k s_t^k]/p^k was not the same for all clients."""
        return int(self._H(round_)[-1])

    def bound(self, round_: int) -> float:
        """What E‖w_τ − w*‖² cannot exceed."""
        return float(self.bounds(round_)[-1])

    def bounds(self, rounds: int) -> Array:
        """The bound at rounds 0 … ``rounds``."""
        time = np.arange(rounds + 1) * self.local_steps + self.gamma
        return np.asarray(self._C(rounds) / time**2 + self._H(rounds) * self.J / time)

    @cached_property
    def _laws(self) -> list[Participation]:
        """The laws without repetition; a run of many rounds has few."""
        return list(dict.fromkeys(self.fleet))

    def law(self, round_: int) -> Participation:
        """The law of a round."""
        return self.fleet[min(round_, len(self.fleet) - 1)]

    def _C(self, rounds: int) -> Array:
        variance = {
            law: expected_B(self.constants, law, self.cap, self.rounding) / law.total_work**2 for law in self._laws
        }
        scale = (16 * self.local_steps / self.constants.convexity) ** 2
        return np.maximum(self.gamma**2 * self.distance, scale * self._sum(variance, rounds))

    def _H(self, rounds: int) -> Array:
        return self._sum({law: float(not law.is_unbiased) for law in self._laws}, rounds)

    def _sum(self, of_law: Mapping[Participation, float], rounds: int) -> Array:
        """Σ_{t<τ} of what each round's law is worth, for τ = 0 … ``rounds``."""
        values = np.full(rounds + 1, of_law[self.fleet[-1]])
        values[0] = 0
        listed = [of_law[law] for law in self.fleet[:rounds]]
        values[1 : len(listed) + 1] = listed
        return values.cumsum()
