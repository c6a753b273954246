"""When a client that is often silent is abandoned: by a threshold, or by Corollary 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from efl.errors import UserError
from efl.settings import NonNegative, Positive, Settings
from efl.theory import Constants, whether_to_abandon


class Rule(Protocol):
    """Judges a client by its observed inactivity."""

    def reason(self, client: int, inactivity: float, round_: int) -> str | None:
        """Why the client should go before this round, in a few words; None if it should stay."""
        ...


@dataclass(frozen=True)
class Threshold:
    """Whoever is silent more often than this goes."""

    most: float

    def reason(self, client: int, inactivity: float, round_: int) -> str | None:
        """The two numbers."""
        return f"inactivity {inactivity:.2f} > {self.most:g}" if inactivity > self.most else None


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


@dataclass(frozen=True)
class Corollary1:
    """Whoever spoils the bound at the last round more by staying than by going, goes."""

    constants: Constants
    local_steps: int
    horizon: int

    def reason(self, client: int, inactivity: float, round_: int) -> str | None:
        """The two bounds."""
        verdict = whether_to_abandon(
            self.constants, client, inactivity, local_steps=self.local_steps, round_=round_, horizon=self.horizon
        )
        return f"inactivity {inactivity:.2f}, {verdict}" if verdict.abandon else None
