"""What the server knows of each client: sample count, model version, how often it was sampled and replied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.client.state_store import NO_ROUND
from efl.wire import FIRST

PRIOR = 2.0
RAREST = 0.1  # a rate; with it no update counts more than ten times what it would from a client that is always there
MOST_COUNTED = 2.0**62  # samples; a cap beyond is none
STATE = ("version", "requests", "replies", "accepted", "rounds", "available", "rejected", "trust", "busy")
FORGETTING = 0.15  # how much the last update counts in what a client is trusted


@dataclass(eq=False)
class ClientTable:
    """One entry per client: samples n_k, model version, requests and replies so far, last round accepted.

    ``objective`` marks the clients whose data count in the current round; ``rounds`` and ``available`` count the rounds
    in which a client was a member and idle, and in which it could be reached, ``busy`` those in which it was at work
    since an earlier one. A request counts once it has been replied to, or will not be. ``rejected`` counts replies that
    were rejected, ``trust`` is how much of a client's updates counted of late, from 0 to 1. ``share_cap`` is for
    clients that are not to be believed: none counts as more samples than so many times the median of those in the
    objective.
    """

    sizes: NDArray[np.int64]
    version: NDArray[np.int64]
    requests: NDArray[np.int64]
    replies: NDArray[np.int64]
    accepted: NDArray[np.int64]
    rounds: NDArray[np.int64]
    available: NDArray[np.int64]
    objective: NDArray[np.bool_]
    rejected: NDArray[np.int64]
    trust: NDArray[np.float64]
    busy: NDArray[np.int64]
    share_cap: float | None = None

    @classmethod
    def of(cls, sizes: NDArray[np.int64], share_cap: float | None = None) -> ClientTable:
        """A table of clients that have not been contacted yet."""
        first, no_round = np.full_like(sizes, FIRST), np.full_like(sizes, NO_ROUND)
        requests, replies, rounds, available, rejected, busy = np.zeros((6, len(sizes)), dtype=np.int64)
        everybody, full = np.ones(len(sizes), dtype=bool), np.ones(len(sizes))
        counts = (requests, replies, no_round, rounds, available, everybody, rejected, full, busy)
        return cls(sizes, first, *counts, share_cap)

    @property
    def samples(self) -> NDArray[np.int64]:
        """As how many samples each client counts: those it has, up to the cap."""
        if self.share_cap is None:
            return self.sizes
        counting = self.sizes[self.objective & (self.sizes > 0)]
        if not len(counting):
            return self.sizes
        median = int(np.sort(counting)[(len(counting) - 1) // 2])  # of two in the middle the smaller: it may be the lie
        return np.minimum(self.sizes, max(1, int(min(self.share_cap * median, MOST_COUNTED))))

    @property
    def shares(self) -> NDArray[np.float64]:
        """p^k = n_k / n over the clients in the objective, 0 for all others."""
        counting = self.samples * self.objective
        shares: NDArray[np.float64] = counting / max(int(counting.sum()), 1)
        return shares

    def response_rates(self) -> NDArray[np.float64]:
        """How often each client replies when sampled, from the rounds before this one.

        Few observations are drawn towards the rate of all clients, as if each had been seen replying like the average
        `PRIOR` times more; where everybody always replied this is exactly 1. Never less than `RAREST`: weights are the
        inverse, and who is first heard of after hundreds of rounds would count hundreds of times.
        """
        return _rates(self.replies, self.requests)

    def availability(self) -> NDArray[np.float64]:
        """How often each idle member could be reached, estimated the same way."""
        return _rates(self.available, self.rounds)

    def idleness(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """How often each of these was idle as a member, so that it could be sampled; 1 where rounds wait for all."""
        if not self.busy.any():
            return np.ones(len(clients))
        return _rates(self.rounds, self.rounds + self.busy)[clients]

    def note_standing(self, rejected: Iterable[int], trust: Mapping[int, float]) -> None:
        """Whose replies were rejected in a round, and how much the updates of the others counted."""
        for client in rejected:
            self.rejected[client] += 1
        clients = list(trust)
        self.trust[clients] += FORGETTING * (np.fromiter(trust.values(), np.float64) - self.trust[clients])

    def reputation(self) -> NDArray[np.float64]:
        """Of each client, from 0 to 1: its trust, times the share of its replies that were not rejected.

        A sampler may go by it; 1 for clients that were not heard of.
        """
        good: NDArray[np.float64] = (self.replies + PRIOR) / (self.replies + self.rejected + PRIOR)
        return self.trust * good

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that depends on the past; sizes come from the data."""
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in STATE}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for name in STATE:
            if name in state:  # some are younger than the checkpoint
                getattr(self, name)[:] = state[name].numpy()


def _rates(hits: NDArray[np.int64], tries: NDArray[np.int64]) -> NDArray[np.float64]:
    overall = (int(hits.sum()) + PRIOR) / (int(tries.sum()) + PRIOR)
    return np.maximum((hits + PRIOR * overall) / (tries + PRIOR), RAREST)
