"""Clients in this process or in processes of its own, with the fleet's behaviour simulated on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from efl.client.evaluation import EvaluateRequests, Metrics
from efl.fleet import Clock, Fleet
from efl.fleet.clock import Allowance, Until
from efl.transport.base import Mask, Replies, Requests

NOTHING = Replies()


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
        self._replies = NOTHING
        self._lost: set[int] = set()
        self._allowance: Allowance | None = None

    @property
    def now(self) -> float | None:
        """Simulated seconds since the start of the run."""
        return None if self.clock is None else self.clock.now

    def available(self, members: Mask) -> Mask:
        """Which members can be reached now; if none can, simulated time passes until one can."""
        return members if self.clock is None else self.clock.available(members)

    def send(self, requests: Requests) -> None:
        """Train or evaluate at once: inactive clients do not reply, stragglers stop early, some replies are lost."""
        if isinstance(requests, EvaluateRequests):
            self._replies = Replies(metrics=self.host.evaluate(requests))
            return
        clients = np.array(list(requests.blobs), dtype=np.int64)
        behaviour = self.fleet.behave(self.seed, requests.round, clients, self.local_steps)
        done = behaviour.steps
        if self.clock is not None:
            lengths = np.array([len(blob) for blob in requests.blobs.values()], dtype=np.float64)
            self._allowance = self.clock.allow(clients, lengths, self.local_steps, requests.deadline)
            done = np.minimum(done, self._allowance.steps)
        steps = dict(zip(clients.tolist(), done.tolist(), strict=True))
        self._lost = set(clients[behaviour.lost].tolist())
        self._replies = Replies(self.host.train(requests.blobs, steps), steps)

    def collect(self, until: Until) -> Replies:
        """The replies that arrived in time."""
        sent, self._replies = self._replies, NOTHING
        lost, self._lost = self._lost, set()
        if self.clock is not None and self._allowance is not None:
            done = np.array([sent.steps[client] for client in self._allowance.clients.tolist()], dtype=np.int64)
            lengths = {client: len(blob) for client, blob in sent.blobs.items()}
            lost |= self.clock.finish(self._allowance, done, lengths, until)
            self._allowance = None
        arrived = {client: blob for client, blob in sent.blobs.items() if client not in lost}
        lost_bytes = sum(len(blob) for client, blob in sent.blobs.items() if client in lost)
        return Replies(arrived, sent.steps, sent.metrics, lost_bytes)

    def start(self) -> None:
        """Start worker processes."""
        self.host.start()

    def close(self) -> None:
        """Stop them."""
        self.host.close()

    def state_dict(self) -> dict[str, Any]:
        """What clients keep, and the simulated time."""
        return {"host": self.host.state_dict()} | ({} if self.clock is None else {"clock": self.clock.state_dict()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.host.load_state_dict(state["host"])
        if self.clock is not None:
            self.clock.load_state_dict(state["clock"])

    def checkpointed(self) -> None:
        """The state was saved in a checkpoint."""
        self.host.checkpointed()
