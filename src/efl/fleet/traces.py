"""Traces: when each client is available, and how fast it then computes and communicates.

In the manner of FedScale's traces, as a file that is easy to write and to read. CSV, a line an interval:

    # period: 86400
    client,start,stop,steps_per_second,down_bytes_per_second,up_bytes_per_second
    0,79200,108000,12.5,2000000,500000
    1,0,,40,12000000,6000000

Times are seconds since the first round. With a period the trace repeats, and an interval may reach into the next
period; without one, nobody is available after the last interval. An empty ``stop`` means for ever. A client without
a line is never available. The same as JSON: ``{"period": 86400, "intervals": [{"client": 0, "start": …}, …]}``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from efl.errors import UserError
from efl.fleet.intervals import Interval, read_intervals
from efl.reading import DamagedError
from efl.storage import checksum

Array = NDArray[np.float64]
EXAMPLES = Path(__file__).parent / "examples"


@dataclass(frozen=True, eq=False)
class Presence:
    """For each client: whether it is available now, for how many seconds more, and its speeds until then."""

    available: NDArray[np.bool_]
    left: Array
    steps_per_second: Array
    down: Array
    up: Array


class Trace:
    """Intervals of all clients as arrays, sorted by client and start, so that one binary search finds everybody."""

    def __init__(self, intervals: Sequence[Interval], clients: int, period: float = math.inf) -> None:
        ordered = sorted(intervals, key=lambda interval: (interval.client, interval.start))
        self.clients, self.period = clients, period
        self.owner = np.array([interval.client for interval in ordered], dtype=np.int64)
        table = [[i.start, i.stop, i.steps_per_second, i.down, i.up] for i in ordered]
        self.start, self.stop, self.steps_per_second, self.down, self.up = np.array(table).T.copy()
        self._span = float(self.start.max()) + 1.0
        self._keys = self.owner * self._span + self.start
        self._first = np.arange(clients) * self._span
        self._last = np.searchsorted(self.owner, np.arange(clients), side="right") - 1

    @property
    def fingerprint(self) -> int:
        """A checksum of all intervals and the period."""
        columns = (
            self.owner,
            self.start,
            self.stop,
            self.steps_per_second,
            self.down,
            self.up,
            np.array([self.period]),
        )
        return reduce(lambda so_far, column: checksum(column, so_far), columns, 0)

    def at(self, time: float, clients: NDArray[np.int64] | None = None) -> Presence:
        """Who is available at this time, and how; of all clients, or of these."""
        chosen = np.arange(self.clients) if clients is None else clients
        phase = time % self.period if self.period < math.inf else time
        found = np.searchsorted(self._keys, self._first[chosen] + min(phase, self._span - 0.5), side="right") - 1
        left = self.stop[found] - phase
        available = (found >= 0) & (self.owner[found] == chosen) & (left > 0)
        if self.period < math.inf:  # intervals that began before the turn of the period
            last = self._last[chosen]
            over = self.stop[last] - self.period - phase
            wrapped = ~available & (self.owner[last] == chosen) & (over > 0)
            found, left, available = np.where(wrapped, last, found), np.where(wrapped, over, left), available | wrapped
        left = np.where(available, left, 0.0)
        return Presence(available, left, self.steps_per_second[found], self.down[found], self.up[found])

    def next_start(self, time: float, among: NDArray[np.bool_]) -> float:
        """When the next of these clients becomes available; infinity if none ever does."""
        starts = self.start[among[self.owner]]
        if self.period < math.inf and len(starts):
            return time + float(((starts - time % self.period) % self.period).min())
        later = starts[starts > time]
        return float(later.min()) if len(later) else math.inf


def find_trace(name: str) -> Path:
    """The file of a trace: an example's name, or a path."""
    example = EXAMPLES / f"{name}.csv"
    return example if example.is_file() else Path(name).expanduser().absolute()


def read_trace(path: Path, clients: int) -> Trace:
    """A trace for so many clients; `UserError` names the file and line of the first thing wrong."""
    try:
        return _read(path, os.stat(path).st_mtime_ns, clients)
    except (OSError, DamagedError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error})"
        known = ", ".join(sorted(example.stem for example in EXAMPLES.glob("*.csv")))
        raise UserError(f"{path}: {reason}; give the path of a trace, or an example's name: {known}") from None


@lru_cache(maxsize=2)
def _read(path: Path, changed: int, clients: int) -> Trace:
    """Read once and kept, as long as the file does not change: it is checked first and used later."""
    intervals, period = read_intervals(path)
    for interval in intervals:
        if interval.client >= clients:
            raise UserError(
                f"{path}:{interval.line}: there is no client {interval.client}; "
                f"the federation's are numbered 0 … {clients - 1}"
            )
    _refuse_overlaps(path, intervals, period)
    return Trace(intervals, clients, period)


def _refuse_overlaps(path: Path, intervals: Sequence[Interval], period: float) -> None:
    before: dict[int, Interval] = {}
    first: dict[int, Interval] = {}
    for now in sorted(intervals, key=lambda interval: (interval.client, interval.start)):
        earlier = before.get(now.client)
        if earlier is not None and earlier.stop > now.start:
            _overlap(path, now, earlier)
        before[now.client] = now
        first.setdefault(now.client, now)
    for client, last in before.items():
        always = last is first[client] and last.stop == math.inf
        if last.stop - period > first[client].start and not always:
            _overlap(path, last, first[client])


def _overlap(path: Path, one: Interval, other: Interval) -> None:
    later, earlier = (one, other) if one.line > other.line else (other, one)
    raise UserError(
        f"{path}:{later.line}: overlapping intervals: client {one.client} is available from {later.start:g} to "
        f"{later.stop:g}, but from {earlier.start:g} to {earlier.stop:g} by line {earlier.line}"
    )
