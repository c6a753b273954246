"""The constants of Corollary 1, as the [fleet] section gives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from efl.errors import UserError
from efl.settings import NonNegative, Positive, Settings
from efl.theory import Constants


@dataclass(frozen=True)
class Assumptions(Settings):
    """The constants of Corollary 1 as a user gives them: L, μ, G, and σ_k and D_k, one number or one a client."""

    smoothness: Positive
    convexity: Positive
    gradient: Positive
    noise: NonNegative | tuple[NonNegative, ...]
    divergence: NonNegative | tuple[NonNegative, ...]

    def constants(self, shares: NDArray[np.float64]) -> Constants:
        """With the shares that make them those of a federation."""
        return Constants(
            smoothness=self.smoothness,
            convexity=self.convexity,
            gradient=self.gradient,
            noise=self._each("noise", len(shares)),
            divergence=self._each("divergence", len(shares)),
            shares=tuple(shares.tolist()),
        )

    def _each(self, name: str, clients: int) -> tuple[float, ...]:
        value = getattr(self, name)
        each: tuple[float, ...] = value if isinstance(value, tuple) else (value,) * clients
        if len(each) != clients:
            raise UserError(f"abandon.{name} lists {len(each)} numbers for {clients} clients")
        return each
