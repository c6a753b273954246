"""What the server knows of each client: its share, its model version, and how reliably it answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.client.state_store import NEVER
from efl.wire import FIRST

PRIOR = 2.0


@dataclass(eq=False)
class Roster:
    """One entry a client: samples n_k, model version, requests and answers so far, last round accepted.

    ``objective`` marks those whose data count in the present round; ``rounds`` and ``available`` count the rounds in
    which a client was a member, and in which it could be reached.
    """

    sizes: NDArray[np.int64]
    version: NDArray[np.int64]
    asked: NDArray[np.int64]
    answered: NDArray[np.int64]
    accepted: NDArray[np.int64]
    rounds: NDArray[np.int64]
    available: NDArray[np.int64]
    objective: NDArray[np.bool_]

    @classmethod
    def of(cls, sizes: NDArray[np.int64]) -> Roster:
        """Clients nobody has talked to yet."""
        first, never = np.full_like(sizes, FIRST), np.full_like(sizes, NEVER)
        asked, answered, rounds, available = np.zeros((4, len(sizes)), dtype=np.int64)
        return cls(sizes, first, asked, answered, never, rounds, available, np.ones(len(sizes), dtype=bool))

    @property
    def shares(self) -> NDArray[np.float64]:
        """p^k = n_k / n over the clients in the objective, 0 for all others."""
        counting = np.where(self.objective, self.sizes, 0)
        shares: NDArray[np.float64] = counting / max(int(counting.sum()), 1)
        return shares

    def answer_rates(self) -> NDArray[np.float64]:
        """How often each client answers when asked, from the rounds before this one.

        Few observations are drawn towards the rate of all clients, as if each had been seen answering like the
        average `PRIOR` times more; where everybody always answered this is exactly 1.
        """
        return _rates(self.answered, self.asked)

    def availability(self) -> NDArray[np.float64]:
        """How often each client could be reached in the rounds in which it was a member, told in the same way."""
        return _rates(self.available, self.rounds)

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the sizes, for a checkpoint."""
        names = ("version", "asked", "answered", "accepted", "rounds", "available")
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in names}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        for name, tensor in tensors.items():
            getattr(self, name)[:] = tensor.numpy()


def _rates(hits: NDArray[np.int64], tries: NDArray[np.int64]) -> NDArray[np.float64]:
    overall = (int(hits.sum()) + PRIOR) / (int(tries.sum()) + PRIOR)
    return (hits + PRIOR * overall) / (tries + PRIOR)
