"""Simulated time: what work takes, when steps and bytes take time and a round may have a deadline.

A client asked at the start of a round downloads its request, works, and uploads its reply, each at the speed its trace
has at that moment. It stops working in time to upload before the deadline, or before it becomes unavailable, and so
does s < E steps, or none. How long its reply will be it knows only afterwards: it reserves `RESERVE` times the length
of its last one (before its first, that of the whole model). A reply that is longer yet comes too late, and is lost.

Whose reply the server waits for, and until when, is the transport's to say: time passes as it asks for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from efl.errors import UserError
from efl.fleet.traces import Presence, Trace

Array = NDArray[np.float64]

RESERVE = 1.25
IDLE = 60.0  # seconds after which a server without a deadline gives up on a cohort in which nobody works


class Until(Protocol):
    """When the server stops waiting for a round's replies."""

    @property
    def deadline(self) -> float | None:
        """The seconds that a round lasts at most."""
        ...

    def done(self, replies: int, pending: int, elapsed: float) -> bool:
        """Whether a round is over, with so many replies, so many pending, after so many seconds."""
        ...


@dataclass(frozen=True, eq=False)
class Allowance:
    """For each client asked: the seconds it has, how long its request takes, its speeds, and the steps that fit."""

    clients: NDArray[np.int64]
    presence: Presence
    budget: Array
    download: Array
    steps: NDArray[np.int64]


class Clock:
    """The time at which the present round begins, and what is needed to tell when it ends."""

    def __init__(self, trace: Trace, first_upload: int) -> None:
        self.trace = trace
        self._now = np.zeros(1)
        self.uploads = np.full(trace.clients, float(first_upload))

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""
        return float(self._now[0])

    def available(self, members: NDArray[np.bool_], *, wait: bool = True) -> NDArray[np.bool_]:
        """Which members can be reached now; if none can, time passes until one can, unless not to ``wait``."""
        available: NDArray[np.bool_] = self.trace.at(self.now).available & members
        if wait and not available.any() and math.isfinite(next_ := self.trace.next_start(self.now, members)):
            self._now[0] = next_
            available = self.trace.at(self.now).available & members
        return available

    def allow(
        self, clients: NDArray[np.int64], request_bytes: Array, local_steps: int, deadline: float | None
    ) -> Allowance:
        """How many of the E steps each of these clients has time for before the deadline."""
        presence = self.trace.at(self.now, clients)
        budget = np.minimum(presence.left, math.inf if deadline is None else deadline)
        download = request_bytes / presence.down
        work = budget - download - RESERVE * self.uploads[clients] / presence.up
        fitting = np.clip(work * presence.steps_per_second, 0, local_steps)
        return Allowance(clients, presence, budget, download, np.floor(fitting).astype(np.int64))

    def work(
        self, allowance: Allowance, steps: NDArray[np.int64], reply_bytes: Mapping[int, int], deadline: float | None
    ) -> tuple[dict[int, float], set[int]]:
        """For how many seconds the server waits for each client that did so many steps; whose replies come too late.

        With a deadline it waits for every client it reached, if need be until then. Without one, for those that train.
        """
        sizes = np.array([reply_bytes.get(client, 0) for client in allowance.clients.tolist()], dtype=np.float64)
        replied, presence = sizes > 0, allowance.presence
        needed = allowance.download + steps / presence.steps_per_second + sizes / presence.up
        late = replied & (needed > allowance.budget)
        self.uploads[allowance.clients[replied]] = sizes[replied]
        waits, awaited = np.minimum(needed, allowance.budget), steps > 0
        if deadline is not None:
            silent = presence.available & (~replied | late)
            waits, awaited = np.where(silent, deadline, waits), awaited | silent
        seconds = dict(zip(allowance.clients[awaited].tolist(), waits[awaited].tolist(), strict=True))
        return seconds, set(allowance.clients[late].tolist())

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self._now[0] += seconds

    def state_dict(self) -> dict[str, Any]:
        """The time, the lengths of the last uploads, and which trace they belong to."""
        return {
            "now": torch.from_numpy(self._now.copy()),
            "uploads": torch.from_numpy(self.uploads.copy()),
            "trace": self.trace.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; `UserError` if it was with another trace."""
        if state["trace"] != self.trace.fingerprint:
            raise UserError("it is of a run with another trace; put back the one it was started with")
        self._now[:], self.uploads[:] = state["now"].numpy(), state["uploads"].numpy()
