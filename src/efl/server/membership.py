"""Who is a member in a round, and whom the objective counts.

Clients arrive and depart as the `Calendar` says. Besides, members that are silent too often may be abandoned: they
leave the objective and the cohorts. They are still asked now and then, so that those who answer again are taken back.
Whenever the objective changes the learning rate starts over (section 4 of the paper); but a member that departed and is
back has not arrived, and neither its return nor its leaving again starts anything over.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.fleet import NO_DEPARTURE, Calendar, Fleet
from efl.server.abandonment import Rule, rule_of

MEMORY = 20  # requests, by and by, after which what a client did before is forgotten
ENOUGH = 10  # requests before a client is judged
ASK_AGAIN = 5  # rounds between two requests to an abandoned client
ANSWERS = 4  # as many in a row, and it is taken back

PRESENT = -1
STATE = ("silence", "requests", "streak", "abandoned", "restarted", "left")
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Change:
    """Some clients arrived, departed, were abandoned or came back, and why."""

    what: str
    clients: list[int]
    why: str


@dataclass(eq=False)
class Membership:
    """Members and objective, round by round.

    ``silence`` is the share of requests that a client left without an answer of late, ``requests`` how many it had
    since it came or came back, ``abandoned`` the round before which it was abandoned (or `PRESENT`), ``streak`` its
    answers in a row. ``restarted`` is the round before which the objective changed last. ``left`` counts how often each
    departed and came back: it is odd for those who are gone.
    """

    calendar: Calendar
    rule: Rule | None = None
    drops_departed: bool = False

    def __post_init__(self) -> None:
        clients = len(self.calendar.arrives)
        self.silence = np.zeros(clients)
        self.requests, self.streak, self.left = np.zeros((3, clients), dtype=np.int64)
        self.abandoned = np.full(clients, PRESENT, dtype=np.int64)
        self.restarted = np.zeros(1, dtype=np.int64)

    @property
    def fixed(self) -> bool:
        """Whether nobody ever comes or goes."""
        return (
            self.rule is None
            and not self.calendar.arrives.any()
            and bool((self.calendar.departs == NO_DEPARTURE).all())
        )

    def present(self, round_: int) -> Mask:
        """Whom a cohort is drawn from."""
        present: Mask = self.calendar.members(round_) & (self.abandoned == PRESENT)
        return present

    def objective(self, round_: int) -> Mask:
        """Whose data count: arrived, not abandoned, and, where the departed are dropped, not departed."""
        there = self.calendar.members(round_) if self.drops_departed else self.calendar.arrives <= round_
        counting: Mask = there & (self.abandoned == PRESENT)
        return counting

    def asked_again(self, round_: int) -> NDArray[np.int64]:
        """Abandoned members whose turn it is to show whether they are back."""
        abandoned = np.flatnonzero(self.abandoned != PRESENT)
        if not len(abandoned):
            return abandoned
        turn = (round_ + 1 - self.abandoned[abandoned]) % ASK_AGAIN == 0
        asked: NDArray[np.int64] = abandoned[turn & self.calendar.members(round_)[abandoned]]
        return asked

    def begin(self, round_: int) -> list[Change]:
        """Arrivals, departures and returns before a round."""
        arrived = np.flatnonzero(self.calendar.arrives == round_).tolist() if round_ > 0 else []
        departed = self.calendar.departs == round_
        if not (arrived or departed.any() or self.left.any()):
            return []
        returned = self.calendar.members(round_) & (self.left % 2 == 1)
        first_time = bool((departed & (self.left == 0)).any())
        self.left += departed.astype(np.int64) + returned
        changes: list[Change] = []
        if arrived:
            changes.append(Change("arrived", arrived, self.calendar.why))
        if departed.any():
            why = "dropped" if self.drops_departed else "kept in the objective"
            changes.append(Change("departed", np.flatnonzero(departed).tolist(), why))
        if returned.any():
            changes.append(Change("returned", np.flatnonzero(returned).tolist(), "can be reached again"))
        if arrived or (first_time and self.drops_departed):
            self.restarted[0] = round_
        return changes

    def end(self, round_: int, asked: NDArray[np.int64], answered: Container[int]) -> list[Change]:
        """Note who answered; whom that leads to abandon, or to take back, from the next round on."""
        if self.rule is None:
            return []
        changes: list[Change] = []
        for client in asked.tolist():
            silent = client not in answered
            self.requests[client] += 1
            self.silence[client] += (silent - self.silence[client]) / min(self.requests[client], MEMORY)
            self.streak[client] = 0 if silent else self.streak[client] + 1
            if self.abandoned[client] != PRESENT:
                changes += self._returned(client)
            elif silent:  # an answer speaks against nobody
                changes += self._judged(client, round_ + 1)
        if changes:
            self.restarted[0] = round_ + 1
        return changes

    def _judged(self, client: int, round_: int) -> list[Change]:
        """Abandon the client if the rule says so; but somebody always stays."""
        if self.rule is None or self.requests[client] < ENOUGH or self.present(round_).sum() <= 1:
            return []
        why = self.rule.reason(client, float(self.silence[client]), round_)
        if why is None:
            return []
        self.abandoned[client], self.streak[client] = round_, 0
        return [Change("abandoned", [client], why)]

    def _returned(self, client: int) -> list[Change]:
        """Take the client back once it answers steadily; what it did before is forgotten."""
        if self.streak[client] < ANSWERS:
            return []
        self.abandoned[client], self.requests[client], self.silence[client] = PRESENT, 0, 0.0
        return [Change("returned", [client], f"{ANSWERS} answers in a row")]

    def state_dict(self) -> dict[str, Tensor]:
        """What depends on the past."""
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in STATE}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for name in STATE:
            if name in state:  # former versions knew no returns
                getattr(self, name)[:] = state[name].numpy()


@dataclass(eq=False)
class LiveMembership(Membership):
    """Members are the clients that have registered; ``open_round`` updates the calendar before each round."""

    open_round: Callable[[int], None] = lambda round_: None

    def begin(self, round_: int) -> list[Change]:
        """Arrivals and departures before a round."""
        self.open_round(round_)
        return super().begin(round_)


def membership_of(fleet: Fleet, shares: NDArray[np.float64], seed: int, local_steps: int, rounds: int) -> Membership:
    """The members of a simulated fleet, in a run of so many rounds of E steps."""
    calendar = Calendar.of(fleet.arrivals, fleet.departures, len(shares), seed)
    return Membership(calendar, rule_of(fleet, shares, local_steps, rounds), fleet.on_departure == "drop")
