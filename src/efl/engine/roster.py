"""What the server knows of each client: its share, its model version, and how reliably it answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.engine.state import NEVER
from efl.wire import FIRST

PRIOR = 2.0


@dataclass(eq=False)
class Roster:
    """One entry a client: samples n_k, model version, requests and answers so far, last round accepted."""

    sizes: NDArray[np.int64]
    version: NDArray[np.int64]
    asked: NDArray[np.int64]
    answered: NDArray[np.int64]
    accepted: NDArray[np.int64]

    @classmethod
    def of(cls, sizes: NDArray[np.int64]) -> Roster:
        """Clients nobody has talked to yet."""
        first, never = np.full_like(sizes, FIRST), np.full_like(sizes, NEVER)
        return cls(sizes, first, np.zeros_like(sizes), np.zeros_like(sizes), never)

    @property
    def shares(self) -> NDArray[np.float64]:
        """p^k = n_k / n."""
        return self.sizes / int(self.sizes.sum())

    def answer_rates(self) -> NDArray[np.float64]:
        """How often each client answers when asked, from the rounds before this one.

        Few observations are drawn towards the rate of all clients, as if each had been seen answering like the
        average `PRIOR` times more; where everybody always answered this is exactly 1.
        """
        asked, answered = int(self.asked.sum()), int(self.answered.sum())
        overall = (answered + PRIOR) / (asked + PRIOR)
        return (self.answered + PRIOR * overall) / (self.asked + PRIOR)

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the sizes, for a checkpoint."""
        names = ("version", "asked", "answered", "accepted")
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in names}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        for name, tensor in tensors.items():
            getattr(self, name)[:] = tensor.numpy()
