"""Clients in this process or in processes of its own, with the fleet's behaviour simulated on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from efl.client.evaluation import EvaluateRequests, Metrics
from efl.fleet import Clock, Fleet
from efl.fleet.clock import Until
from efl.transport.base import Mask, Replies, Requests
from efl.transport.in_flight import Upload, state_of, taken, uploads_of


class Host(Protocol):
    """Trains and evaluates for clients: a `ClientHost`, or several on different ranks."""

    def train(self, blobs: Mapping[int, bytes], steps: Mapping[int, int]) -> dict[int, bytes]:
        """The replies to training requests, from clients that have time for so many steps."""
        ...

    def evaluate(self, requests: EvaluateRequests) -> Metrics:
        """What clients find of a model."""
        ...

    def start(self) -> object:
        """Start worker processes."""
        ...

    def close(self) -> None:
        """Stop them."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What clients keep."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...

    def checkpointed(self) -> None:
        """The state was saved in a checkpoint."""
        ...


class LocalTransport:
    """Gives requests to a host; fleet and clock decide who trains for how long and whose reply is lost.

    Args:
        host: Trains and evaluates for the clients.
        fleet: How clients behave.
        seed: The run's seed.
        local_steps: E, the steps of a complete client.
        clock: Simulated time, where the fleet has a trace.
    """

    def __init__(self, host: Host, fleet: Fleet, seed: int, local_steps: int, clock: Clock | None = None) -> None:
        self.host, self.fleet, self.seed, self.local_steps, self.clock = host, fleet, seed, local_steps, clock
        self._found: Metrics | None = None  # by the evaluation that was sent last
        self._in_flight: list[Upload] = []
        self._unheard: dict[int, int] = {}  # the steps of clients sent to last that nobody waits for

    @property
    def now(self) -> float | None:
        """Simulated seconds since the start of the run."""
        return None if self.clock is None else self.clock.now

    def available(self, members: Mask) -> Mask:
        """Which members can be reached now; if none can, and no upload is in flight, time passes until one can."""
        return members if self.clock is None else self.clock.available(members, wait=not self._in_flight)

    def send(self, requests: Requests) -> None:
        """Train or evaluate at once: inactive clients do not reply, stragglers stop early, some replies are lost."""
        if isinstance(requests, EvaluateRequests):
            self._found = self.host.evaluate(requests)
            return
        clients, deadline = np.array(list(requests.blobs), dtype=np.int64), requests.deadline
        behaviour = self.fleet.behave(self.seed, requests.round, clients, self.local_steps)
        done, allowance = behaviour.steps, None
        if self.clock is not None:
            lengths = np.array([len(blob) for blob in requests.blobs.values()], dtype=np.float64)
            allowance = self.clock.allow(clients, lengths, self.local_steps, deadline)
            done = np.minimum(done, allowance.steps)
        steps = dict(zip(clients.tolist(), done.tolist(), strict=True))
        replies = self.host.train(requests.blobs, steps)
        seconds, lost = dict.fromkeys(steps, 0.0), set(clients[behaviour.lost].tolist())
        if self.clock is not None and allowance is not None:
            sizes = {client: len(blob) for client, blob in replies.items()}
            seconds, late = self.clock.work(allowance, done, sizes, deadline)
            lost |= late
        now = self.now or 0.0
        for client, takes in seconds.items():
            blob = replies.get(client, b"")
            arrives, gone = (b"", len(blob)) if client in lost else (blob, 0)
            self._in_flight.append(Upload(client, steps[client], now, takes, arrives, gone))
        self._unheard = {client: steps[client] for client in steps if client not in seconds}

    def collect(self, until: Until) -> Replies:
        """The replies that arrived before the round ended; others stay in flight."""
        if self._found is not None:
            found, self._found = self._found, None
            return Replies(metrics=found)
        uploads, seconds = taken(self._in_flight, self.now or 0.0, until)
        if self.clock is not None:
            self.clock.pass_by(seconds)
        done = {upload.client for upload in uploads}
        self._in_flight = [upload for upload in self._in_flight if upload.client not in done]
        steps = self._unheard | {upload.client: upload.steps for upload in uploads}
        self._unheard = {}
        arrived = {upload.client: upload.blob for upload in uploads if upload.blob}
        return Replies(arrived, dict(sorted(steps.items())), lost_bytes=sum(upload.lost_bytes for upload in uploads))

    def start(self) -> None:
        """Start worker processes."""
        self.host.start()

    def close(self) -> None:
        """Stop them."""
        self.host.close()

    def state_dict(self) -> dict[str, Any]:
        """What clients keep, uploads in flight, and the simulated time."""
        state = {"host": self.host.state_dict(), "in_flight": state_of(self._in_flight)}
        return state | ({} if self.clock is None else {"clock": self.clock.state_dict()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.host.load_state_dict(state["host"])
        self._in_flight = uploads_of(state.get("in_flight", {}))
        if self.clock is not None:
            self.clock.load_state_dict(state["clock"])

    def checkpointed(self) -> None:
        """The state was saved in a checkpoint."""
        self.host.checkpointed()
