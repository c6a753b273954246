"""Samples the cohort of a round, and tells with what probability each of its clients was drawn.

Where rounds do not wait for all clients, those at work cannot be sampled: the cohort refills what has become free. The
probability is then that of being drawn from those who are idle, times how often the client is idle. Over many rounds
Σ 1/π_k over the replies of client k comes to as much for all, however slow it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from efl.server.client_table import ClientTable

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Cohort:
    """The cohort S_τ in increasing order, and the probability with which each of its clients is sampled."""

    clients: NDArray[np.int64]
    probability: NDArray[np.float64]

    def joined_by(self, others: NDArray[np.int64]) -> Cohort:
        """The cohort with some more clients, which are sampled for certain."""
        if not len(others):
            return self
        clients = np.concatenate([self.clients, others])
        order = np.argsort(clients)
        probability = np.concatenate([self.probability, np.ones(len(others))])
        return Cohort(clients[order], probability[order])


class Sampler(Protocol):
    """Draws cohorts."""

    @property
    def needs_reachable(self) -> bool:
        """Whether only clients that can be reached at the moment are candidates, not all members."""
        ...

    def sample(self, table: ClientTable, available: Mask, cohort: int, rng: np.random.Generator) -> Cohort:
        """A cohort from the ``available`` clients; all of them if they are fewer than ``cohort``."""
        ...


class UniformSampler:
    """Every client with the same probability, without replacement."""

    needs_reachable = False

    def sample(self, table: ClientTable, available: Mask, cohort: int, rng: np.random.Generator) -> Cohort:
        """A cohort of the available clients."""
        candidates = np.flatnonzero(available)
        chosen = uniform(len(candidates), min(cohort, len(candidates)), rng)
        clients = candidates[chosen.clients]
        return Cohort(clients, chosen.probability * table.idleness(clients))


class ShareSampler:
    """Each client with probability proportional to its share p^k of the samples."""

    needs_reachable = False

    def sample(self, table: ClientTable, available: Mask, cohort: int, rng: np.random.Generator) -> Cohort:
        """A cohort of the available clients."""
        candidates = np.flatnonzero(available)
        chosen = by_share(table.shares[candidates], min(cohort, len(candidates)), rng)
        clients = candidates[chosen.clients]
        return Cohort(clients, chosen.probability * table.idleness(clients))


class PoissonSampler:
    """Every client by itself, with probability cohort/N: a round has as many as ``cohort`` on average.

    N counts everybody, available or not, so that nobody's probability depends on who else is there: what privacy is
    accounted for by.
    """

    needs_reachable = False

    def sample(self, table: ClientTable, available: Mask, cohort: int, rng: np.random.Generator) -> Cohort:
        """Those of the available clients whose turn it is."""
        probability = min(1.0, cohort / len(available))
        chosen = np.flatnonzero((rng.random(len(available)) < probability) & available).astype(np.int64)
        return Cohort(chosen, np.full(len(chosen), probability))


class ReachableSampler(UniformSampler):
    """Uniformly among the clients that can be reached.

    The probability counts how often a client can be: one that is offline half of the time weighs twice as much.
    """

    needs_reachable = True

    def sample(self, table: ClientTable, available: Mask, cohort: int, rng: np.random.Generator) -> Cohort:
        """A cohort of the available clients."""
        drawn = super().sample(table, available, cohort, rng)
        return Cohort(drawn.clients, drawn.probability * table.availability()[drawn.clients])


SAMPLERS: dict[str, Sampler] = {
    "uniform": UniformSampler(),
    "share": ShareSampler(),
    "available": ReachableSampler(),
    "poisson": PoissonSampler(),
}


def uniform(clients: int, cohort: int, rng: np.random.Generator) -> Cohort:
    """``cohort`` of ``clients``, each with the same probability, without replacement."""
    if not cohort:
        return Cohort(np.zeros(0, dtype=np.int64), np.zeros(0))
    chosen = np.sort(rng.choice(clients, cohort, replace=False)).astype(np.int64)
    return Cohort(chosen, np.full(cohort, cohort / clients))


def by_share(shares: NDArray[np.float64], cohort: int, rng: np.random.Generator) -> Cohort:
    """With probability proportional to p^k, never above 1: systematic sampling in random order.

    Clients are laid end to end, each as long as its probability, and a comb of unit spacing with a random offset
    picks ``cohort`` of them. So the probabilities are exact, which those of drawing one by one are not.
    """
    if not cohort:
        return Cohort(np.zeros(0, dtype=np.int64), np.zeros(0))
    probability = inclusion_probabilities(shares, cohort)
    certain = np.flatnonzero(probability >= 1.0)
    others = rng.permutation(np.flatnonzero(probability < 1.0))
    picked = others[:0]
    if len(certain) < cohort:
        teeth = rng.random() + np.arange(cohort - len(certain))
        ends = np.cumsum(probability[others])
        picked = others[np.searchsorted(ends[:-1], teeth, side="right")]  # the last one ends at the rounded total
    chosen = np.sort(np.concatenate([certain, picked])).astype(np.int64)
    return Cohort(chosen, probability[chosen])


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
