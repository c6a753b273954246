"""What the theorems must know about a problem: Assumptions 1 to 4, and how unlike the clients are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from efl.errors import UserError
from efl.settings import NonNegative, Positive, Settings

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Constants(Settings):
    """The constants of a strongly convex federation; tuples have an entry for each client.

    >>> Constants(smoothness=4, convexity=1, gradient=3, noise=(1, 1), divergence=(0.5, 0.2), shares=(0.6, 0.4))
    Constants(smoothness=4.0, convexity=1.0, gradient=3.0, noise=(1.0, 1.0), divergence=(0.5, 0.2), shares=(0.6, 0.4))
    """

    smoothness: Positive  # L of Assumption 1
    convexity: Positive  # μ of Assumption 2
    gradient: NonNegative  # G of Assumption 4: E‖g‖² ≤ G²
    noise: tuple[NonNegative, ...]  # σ_k of Assumption 3: E‖g − ḡ‖² ≤ σ_k²
    divergence: tuple[NonNegative, ...]  # D_k = F_k(w*) − F_k*
    shares: Annotated[tuple[Positive, ...], Field(min_length=1)]  # p^k, in sum 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.noise) == len(self.divergence) == len(self.shares):
            raise UserError("noise, divergence and shares need one entry for each client")
        if abs(sum(self.shares) - 1) > 1e-6:
            raise UserError(f"shares: should add up to 1, got {sum(self.shares):g}")
        if self.convexity > self.smoothness:
            raise UserError(f"convexity: cannot exceed smoothness ({self.smoothness:g}), got {self.convexity:g}")

    def without(self, client: int) -> Constants:
        """The constants once a client is gone: shares renormalised, the rest taken to stay as it was."""
        if not 0 <= client < len(self.shares) or len(self.shares) == 1:
            raise UserError(f"client: {client} cannot leave a federation of {len(self.shares)}")
        shares = _omit(self.shares, client)
        return replace(
            self,
            noise=_omit(self.noise, client),
            divergence=_omit(self.divergence, client),
            shares=tuple(share / sum(shares) for share in shares),
        )


def _omit(values: tuple[float, ...], index: int) -> tuple[float, ...]:
    return values[:index] + values[index + 1 :]
