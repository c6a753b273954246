"""How clients take part: the law of s, the weight given to each s, and the moments the theorem needs.

A round is described by two tables, client × (0 … E): the probability that client k does s steps, and the
aggregation coefficient p_τ^k it then gets. All schemes of the paper are such tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from efl.errors import UserError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Participation:
    """One round's law.

    >>> fleet = Participation.incomplete([0.5, 0.5], local_steps=4)      # s uniform in 1 … 4, weights p^k·E/s
    >>> fleet.work, fleet.is_unbiased, fleet.cap
    (array([2., 2.]), True, 4.0)
    """

    shares: Array  # p^k
    chance: Array  # (clients, E + 1): probability of s steps
    weight: Array  # (clients, E + 1): p_τ^k if s steps were done; 0 for s = 0

    def __post_init__(self) -> None:
        rows = len(self.shares)
        if self.chance.shape != self.weight.shape or self.chance.shape[0] != rows or self.chance.shape[1] < 2:
            raise UserError("chance and weight need a row for each client and a column for each of 0 … E steps")
        if (self.chance < 0).any() or not np.allclose(self.chance.sum(1), 1):
            raise UserError("chance: the probabilities of a client should add up to 1")

    @classmethod
    def complete(cls, shares: Sequence[float] | Array, local_steps: int) -> Participation:
        """All E steps of everyone, with weights p^k."""
        return cls.inactive(shares, local_steps, np.zeros(len(shares)))

    @classmethod
    def incomplete(cls, shares: Sequence[float] | Array, local_steps: int) -> Participation:
        """Between 1 and E steps, each as likely, with the paper's weights p^k·E/s."""
        shares = np.asarray(shares, dtype=np.float64)
        steps = np.arange(1, local_steps + 1)
        chance = np.zeros((len(shares), local_steps + 1))
        weight = np.zeros_like(chance)
        chance[:, 1:] = 1 / local_steps
        weight[:, 1:] = shares[:, None] * local_steps / steps
        return cls(shares, chance, weight)

    @classmethod
    def inactive(
        cls,
        shares: Sequence[float] | Array,
        local_steps: int,
        inactivity: Sequence[float] | Array,
        *,
        corrected: bool = False,
    ) -> Participation:
        """All E steps, or none with probability y^k; corrected, the weights are p^k/(1 − y^k).

        A client that is never there (y = 1) gets no weight: no correction brings it back.
        """
        shares, absent = np.asarray(shares, dtype=np.float64), np.asarray(inactivity, dtype=np.float64)
        chance = np.zeros((len(shares), local_steps + 1))
        weight = np.zeros_like(chance)
        chance[:, 0], chance[:, -1] = absent, 1 - absent
        present = absent < 1
        weight[present, -1] = shares[present] / (1 - absent[present] if corrected else 1)
        return cls(shares, chance, weight)

    @property
    def local_steps(self) -> int:
        """E."""
        return int(self.chance.shape[1]) - 1

    @cached_property
    def work(self) -> Array:
        """E[p_τ^k s_τ^k] of each client."""
        return np.asarray((self.chance * self.weight) @ self._steps)

    @cached_property
    def squared_work(self) -> Array:
        """E[(p_τ^k)² s_τ^k] of each client."""
        return np.asarray((self.chance * self.weight**2) @ self._steps)

    @cached_property
    def total_work(self) -> float:
        """E[Σ_k p_τ^k s_τ^k]."""
        return float(self.work.sum())

    @cached_property
    def cap(self) -> float:
        """θ of Assumption 5: the largest p_τ^k/p^k that can occur, and at least 1."""
        return float(max(1.0, (np.where(self.chance > 0, self.weight, 0) / self.shares[:, None]).max()))

    @cached_property
    def is_unbiased(self) -> bool:
        """Whether E[p_τ^k s_τ^k]/p^k is the same for all clients, so that r_τ = 0."""
        ratio = self.work / self.shares
        return bool(np.ptp(ratio) <= 1e-9 * ratio.max())

    @property
    def _steps(self) -> Array:
        return np.arange(self.local_steps + 1, dtype=np.float64)
