"""Arrivals and departures that are settled before the first round: who is a member in which rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from efl.errors import UserError
from efl.rng import Purpose, stream
from efl.settings import MOST, Count

Round = Count
Who = Count | Annotated[tuple[Annotated[int, Field(ge=0, le=MOST)], ...], Field(min_length=1)]
Event = tuple[Round, Who] | tuple[Round, Round, Who]

NO_DEPARTURE = np.iinfo(np.int64).max
"""The round in which a client departs that never does."""
ARRIVALS, DEPARTURES = 0, 1  # the two kinds draw from streams of their own


@dataclass(frozen=True, eq=False)
class Calendar:
    """The round in which each client arrives (0: there from the start), and departs (`NO_DEPARTURE`: it stays).

    >>> plan = Calendar.of([(60, 2)], [(80, (0,))], clients=5, seed=0)
    >>> plan.arrives.tolist(), np.flatnonzero(plan.members(80)).tolist()
    ([0, 0, 0, 60, 60], [1, 2, 3, 4])
    """

    arrives: NDArray[np.int64]
    departs: NDArray[np.int64]
    why: str = "as planned"

    @classmethod
    def of(cls, arrivals: Sequence[Event], departures: Sequence[Event], clients: int, seed: int) -> Calendar:
        """The calendar of these events.

        An event is ``(round, who)``, or ``(first, last, who)`` for each client at a random round between those two;
        ``who`` is a number of clients or names them. Of clients that are only counted, those with the highest numbers
        arrive, in the order of their numbers; and those who depart are drawn from those who are there.
        """
        arrives = _arrivals(sorted(arrivals, key=lambda event: event[0]), clients, seed)
        return cls(arrives, _departures(sorted(departures, key=lambda event: event[0]), arrives, seed))

    def members(self, round_: int) -> NDArray[np.bool_]:
        """Who has arrived and not departed yet."""
        return (self.arrives <= round_) & (round_ < self.departs)


def _arrivals(events: Sequence[Event], clients: int, seed: int) -> NDArray[np.int64]:
    arrives = np.zeros(clients, dtype=np.int64)
    for number, event in enumerate(events):
        if isinstance(named := event[-1], tuple):
            _refuse_unknown("arrivals", named, clients)
            for client, round_ in zip(named, _rounds(event, len(named), seed, ARRIVALS, number), strict=True):
                if arrives[client]:
                    raise UserError(f"arrivals: client {client} arrives twice")
                arrives[client] = round_
    counted = sum(event[-1] for event in events if isinstance(event[-1], int))
    free = np.flatnonzero(arrives == 0)
    if counted >= len(free):
        late = clients - len(free) + counted
        raise UserError(
            f"arrivals: {late} of {clients} clients arrive later; at least one must be there from the start"
        )
    newcomers = iter(free[len(free) - counted :].tolist())
    for number, event in enumerate(events):
        if isinstance(count := event[-1], int):
            for round_ in _rounds(event, count, seed, ARRIVALS, number):
                arrives[next(newcomers)] = round_
    return arrives


def _departures(events: Sequence[Event], arrives: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    departs = np.full_like(arrives, NO_DEPARTURE)
    for number, event in enumerate(events):
        if isinstance(named := event[-1], tuple):
            _refuse_unknown("departures", named, len(arrives))
            for client, round_ in zip(named, _rounds(event, len(named), seed, DEPARTURES, number), strict=True):
                if departs[client] != NO_DEPARTURE:
                    raise UserError(f"departures: client {client} departs twice")
                if round_ <= arrives[client]:
                    raise UserError(
                        f"departures: client {client} departs in round {round_}, "
                        f"but arrives in round {arrives[client]} only"
                    )
                departs[client] = round_
    for number, event in enumerate(events):
        if isinstance(count := event[-1], int):
            rng = stream(seed, Purpose.MEMBERSHIP, len(events) + number, DEPARTURES)
            for round_ in _rounds(event, count, seed, DEPARTURES, number):
                there = np.flatnonzero((arrives < round_) & (departs == NO_DEPARTURE))
                if not len(there):
                    raise UserError(f"departures: nobody is left to depart in round {round_}")
                departs[rng.choice(there)] = round_
    return departs


def _rounds(event: Event, count: int, seed: int, kind: int, number: int) -> list[int]:
    """When each of ``count`` clients comes or goes, in order."""
    first, last = event[0], event[1] if len(event) == 3 else event[0]
    if last < first:
        name = ("arrivals", "departures")[kind]
        raise UserError(f"{name}: rounds {first} … {last} are none; write the earlier one first")
    drawn = stream(seed, Purpose.MEMBERSHIP, number, kind).integers(first, last + 1, count)
    return sorted(drawn.tolist())


def _refuse_unknown(key: str, named: Sequence[int], clients: int) -> None:
    for client in named:
        if client >= clients:
            raise UserError(f"{key}: there is no client {client}; they are numbered 0 … {clients - 1}")
