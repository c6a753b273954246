"""What follows from how unequal clients' shares of the objective are."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST = 2.0


def effective_clients(shares: NDArray[np.float64]) -> float:
    """1/Σ(p^k)²: how many clients of equal shares would average out noise as well.

    >>> effective_clients(np.full(4, 0.25)), round(effective_clients(np.array([0.7, 0.1, 0.1, 0.1])), 2)
    (4.0, 1.92)
    """
    squares = float(np.square(shares).sum())
    return 1 / squares if squares else 0.0


def effective_cohort(shares: NDArray[np.float64], cohort: int) -> float:
    """How many updates of equal weight a round's aggregate is worth: its variance is Σ(p^k)²/π times one's own."""
    return _sampled(shares, cohort) * effective_clients(shares)


def remembered_clients(shares: NDArray[np.float64], cohort: int) -> int:
    """The effective clients, rounded; 0 where memories of them do more harm than good.

    Until client k returns, its memory acts for N/cohort rounds, with the weight p^k in each: together more than what it
    asked for once that exceeds 1, which is an overshoot. For the average sample's owner it is at most 1/`LEAST` if
    1/Σ(p^k)² is `LEAST` times N/cohort, that is, if the effective cohort is at least `LEAST`.

    >>> remembered_clients(np.full(50, 1 / 50), 10), remembered_clients(np.array([0.7, 0.1, 0.1, 0.1]), 2)
    (50, 0)
    """
    clients = effective_clients(shares)
    return round(clients) if _sampled(shares, cohort) * clients >= LEAST else 0


def _sampled(shares: NDArray[np.float64], cohort: int) -> float:
    """The part of the clients in the objective that a cohort is."""
    return min(1.0, cohort / max(int(np.count_nonzero(shares)), 1))


def fade(clients: int) -> float:
    """γ = 1 − ½ Σ(p^k)² per round, where ``clients`` is 1/Σ(p^k)²; 0, which is to forget at once, without any.

    >>> fade(50), fade(0)
    (0.99, 0.0)
    """
    return 1 - 0.5 / clients if clients else 0.0


def powers(base: float, exponents: Tensor) -> Tensor:
    """Base to each of the ``exponents`` (C, 1), worked out one by one.

    PyTorch's own powers have other last bits at the end of a tensor, so that they depend on who works beside whom.
    """
    found = [[base**exponent] for exponent in exponents.flatten().tolist()]
    return torch.tensor(found, dtype=torch.float32, device=exponents.device)
