"""Corollary 1: when a client that is often inactive does more harm than good.

Kept, it leaves a bias that no further round removes; abandoned at τ₀, training restarts on the others and has
T − τ₀ rounds to converge. The corollary compares the two bounds at the deadline T.
"""

from __future__ import annotations

from dataclasses import dataclass

from efl.errors import UserError
from efl.theory.constants import Constants
from efl.theory.participation import Participation
from efl.theory.theorem1 import Theorem1


@dataclass(frozen=True)
class Verdict:
    """What the corollary says of one client, with the two numbers it compares."""

    kept: float  # f₀, the bound at T if the client stays
    abandoned: float  # f₁(T), the bound at T if it goes now

    @property
    def abandon(self) -> bool:
        """Whether the client should go."""
        return self.kept > self.abandoned

    def __str__(self) -> str:
        sign, word = (">", "abandon") if self.abandon else ("≤", "keep")
        return f"{word}: bound with it {self.kept:.3g} {sign} {self.abandoned:.3g} without"


def whether_to_abandon(
    constants: Constants,
    client: int,
    inactivity: float,
    *,
    local_steps: int,
    round_: int,
    horizon: int,
    distance: float | None = None,
) -> Verdict:
    """Corollary 1 for a client that is inactive with probability y^a, asked in round τ₀ with the deadline T.

    It should go if f₀ = y^a·J/E > f₁(T) = C̃_T/(E(T − τ₀) + γ̃)². J is that of the whole federation, C̃ and γ̃ are those
    of a fresh start without the client. ``distance`` is E‖w − ŵ*‖² at τ₀; where it is not known, (G/μ)² bounds it,
    since μ‖w − ŵ*‖ ≤ ‖∇F(w)‖ ≤ G. The other clients are taken to complete their work.

    The paper writes y^a·J for the limit of H_τJ/(τE + γ) with H_τ = y^a·τ; that limit is y^a·J/E, and only with it does
    the rough form follow.

    >>> pair = Constants(smoothness=2, convexity=1, gradient=1, noise=(0, 0), divergence=(0, 9), shares=(0.8, 0.2))
    >>> print(whether_to_abandon(pair, 1, inactivity=0.5, local_steps=1, round_=0, horizon=1000))
    abandon: bound with it 28.8 > 0.402 without
    """
    if not 0 <= inactivity <= 1:
        raise UserError(f"inactivity: should be a probability, got {inactivity:g}")
    if not 0 <= round_ <= horizon:
        raise UserError(f"round: should lie between 0 and the horizon ({horizon}), got {round_}")
    if distance is None:
        distance = (constants.gradient / constants.convexity) ** 2
    rest = constants.without(client)
    kept = _everyone(constants, local_steps, distance)
    gone = _everyone(rest, local_steps, distance)
    return Verdict(inactivity * kept.J / local_steps, gone.bound(horizon - round_))


def rough_threshold(constants: Constants, *, local_steps: int, horizon: int) -> float:
    """The corollary's short form: an inactivity above C/(J·T·E) is too much. C is what C_τ grows by in a round.

    It is the exact form at τ₀ = 0 once TE ≫ γ and the start is forgotten, if the client's going leaves C and γ alone.
    Infinite where the clients are alike (J = 0): then absence does no harm.
    """
    everyone = _everyone(constants, local_steps, distance=0)
    per_round = everyone.C(1)
    return per_round / (everyone.J * horizon * local_steps) if everyone.J else float("inf")


def _everyone(constants: Constants, local_steps: int, distance: float) -> Theorem1:
    return Theorem1(constants, [Participation.complete(constants.shares, local_steps)], distance)
