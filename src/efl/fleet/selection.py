"""Which clients are asked in a round, and with what probability each was."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Selection:
    """The cohort S_τ in increasing order, and the probability with which each of its clients is asked."""

    clients: NDArray[np.int64]
    probability: NDArray[np.float64]

    def joined_by(self, others: NDArray[np.int64]) -> "Selection":
        """With some clients more, who are asked for certain."""
        if not len(others):
            return self
        clients = np.concatenate([self.clients, others])
        order = np.argsort(clients)
        probability = np.concatenate([self.probability, np.ones(len(others))])
        return Selection(clients[order], probability[order])


def uniform(shares: NDArray[np.float64], cohort: int, rng: np.random.Generator) -> Selection:
    """Everyone with the same probability, without replacement."""
    chosen = np.sort(rng.choice(len(shares), cohort, replace=False)).astype(np.int64)
    return Selection(chosen, np.full(cohort, cohort / len(shares)))


def by_share(shares: NDArray[np.float64], cohort: int, rng: np.random.Generator) -> Selection:
    """With probability proportional to p^k, never above 1: systematic sampling in random order.

    Clients are laid end to end, each as long as its probability, and a comb of unit spacing with a random offset
    picks ``cohort`` of them. So the probabilities are exact, which those of drawing one by one are not.
    """
    probability = inclusion_probabilities(shares, cohort)
    certain = np.flatnonzero(probability >= 1.0)
    others = rng.permutation(np.flatnonzero(probability < 1.0))
    picked = others[:0]
    if len(certain) < cohort:
        teeth = rng.random() + np.arange(cohort - len(certain))
        ends = np.cumsum(probability[others])
        picked = others[np.searchsorted(ends[:-1], teeth, side="right")]  # the last one ends at the rounded total
    chosen = np.sort(np.concatenate([certain, picked])).astype(np.int64)
    return Selection(chosen, probability[chosen])


def inclusion_probabilities(shares: NDArray[np.float64], cohort: int) -> NDArray[np.float64]:
    """min(1, c·p^k) with c such that they sum to ``cohort``."""
    probability = np.zeros(len(shares))
    certain = np.zeros(len(shares), dtype=bool)
    while True:
        rest = cohort - certain.sum()
        probability[~certain] = rest * shares[~certain] / max(shares[~certain].sum(), 1e-300)
        probability[certain] = 1.0
        over = (probability >= 1.0) & ~certain
        if not over.any():
            return probability
        certain |= over


SELECTIONS = {"uniform": uniform, "share": by_share, "available": uniform}  # the last, among those who are
