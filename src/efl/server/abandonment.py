"""Rules for abandoning unresponsive clients: a threshold on inactivity, or Corollary 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from efl.fleet import Fleet
from efl.fleet.assumptions import Assumptions
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


def rule_of(fleet: Fleet, shares: NDArray[np.float64], local_steps: int, rounds: int) -> Rule | None:
    """The rule that ``fleet.abandon`` asks for, for a run of so many rounds of E steps; None if nobody is abandoned."""
    if isinstance(fleet.abandon, Assumptions):
        return Corollary1(fleet.abandon.constants(shares), local_steps, rounds)
    return None if fleet.abandon is False else Threshold(fleet.abandon)
