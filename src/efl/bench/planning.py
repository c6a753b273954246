"""What it takes to plan a round: who is there, who is available by the trace, who is asked, how many steps fit."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from efl.fleet import Clock, Fleet
from efl.fleet.intervals import Interval
from efl.fleet.traces import Trace
from efl.rng import Purpose, stream
from efl.server.client_table import ClientTable
from efl.server.membership import membership_of
from efl.server.round_end import RoundEnd
from efl.server.sampling import UniformSampler

DAY = 86400.0
NIGHTS, COHORT, STEPS, BYTES = 7, 100, 20, 20_000.0
DEADLINE = RoundEnd(600.0)


@dataclass(frozen=True)
class Planning:
    """The milliseconds of a round's plan, median and at best, and the bytes by which memory grows over the rounds."""

    clients: int
    intervals: int
    milliseconds: float
    best: float
    growth: int

    def __str__(self) -> str:
        return (
            f"{self.clients:>7,} clients, {self.intervals:,} intervals, cohort {COHORT}: "
            f"{self.milliseconds:.2f} ms a round ({self.best:.2f} at best), "
            f"memory {self.growth / 1e3:+.1f} kB over the later half of the rounds"
        )


def measure(clients: int, rounds: int) -> Planning:
    """Plan rounds of a fleet with arrivals, departures, abandoning and a trace of a week."""
    trace = _nights(clients)
    times = [seconds for seconds, _ in _rounds(trace, rounds)]
    tracemalloc.start()
    try:
        memory = [used for _, used in _rounds(trace, rounds)]
    finally:
        tracemalloc.stop()
    return Planning(
        clients, len(trace.owner), 1e3 * median(times), 1e3 * min(times), memory[-1] - memory[len(memory) // 2]
    )


def _rounds(trace: Trace, rounds: int) -> Iterator[tuple[float, int]]:
    """For each round the seconds its plan took, and the memory in use after it."""
    some = trace.clients // 10
    coming, going = ((5, 10, some),), ((10, 15, some),)
    fleet = Fleet(arrivals=coming, departures=going, abandon=0.5)  # the trace alone
    table = ClientTable.of(np.ones(trace.clients, dtype=np.int64))
    members, clock = membership_of(fleet, table.shares, 0, STEPS, rounds), Clock(trace, first_upload=int(BYTES))
    for round_ in range(rounds):
        began = time.perf_counter()
        members.begin(round_)
        members.objective(round_)
        available = clock.available(members.present(round_))
        cohort = UniformSampler().sample(table, available, COHORT, stream(0, Purpose.SELECTION, round_))
        allowed = clock.allow(cohort.clients, np.full(len(cohort.clients), BYTES), STEPS, DEADLINE.deadline)
        behaviour = fleet.behave(0, round_, cohort.clients, STEPS)
        seconds = time.perf_counter() - began
        done = np.minimum(behaviour.steps, allowed.steps)
        replies = dict.fromkeys(cohort.clients[done > 0].tolist(), int(BYTES))
        waits, _ = clock.work(allowed, done, replies, DEADLINE.deadline)
        clock.pass_by(max(waits.values(), default=0.0))
        members.end(round_, cohort.clients, replies)
        yield seconds, tracemalloc.get_traced_memory()[0]


def _nights(clients: int) -> Trace:
    """Every client available for some hours of every night, at its own hour."""
    rng = np.random.default_rng(0)
    intervals: list[Interval] = []
    for client in range(clients):
        hour, speed = rng.uniform(0, DAY / 2), float(np.exp(rng.normal(0, 0.9)))
        for night in range(NIGHTS):
            start = night * DAY + hour
            intervals.append(Interval(0, client, start, start + rng.uniform(0.1, 0.4) * DAY, speed, 1e6, 3e5))
    return Trace(intervals, clients, NIGHTS * DAY)
