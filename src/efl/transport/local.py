"""Clients in this process, with the fleet's behaviour played out on the way."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from efl.client.host import ClientHost
from efl.fleet import Clock, Fleet
from efl.transport.base import Exchange


class LocalTransport:
    """Hands requests to a `ClientHost`; fleet and clock decide who works how long and whose reply is lost."""

    def __init__(self, host: ClientHost, fleet: Fleet, seed: int, local_steps: int, clock: Clock | None) -> None:
        self.host, self.fleet, self.seed, self.local_steps, self.clock = host, fleet, seed, local_steps, clock

    def exchange(self, round_: int, requests: Mapping[int, bytes]) -> Exchange:
        """One round: inactive clients stay silent, stragglers stop early, some replies never arrive."""
        clients = np.array(list(requests), dtype=np.int64)
        behaviour = self.fleet.behave(self.seed, round_, clients, self.local_steps)
        lost = set(clients[behaviour.lost].tolist())
        if self.clock is None:
            steps, replies = self._play(requests, clients, behaviour.steps)
        else:
            lengths = np.array([len(request) for request in requests.values()], dtype=np.float64)
            allowance = self.clock.allow(clients, lengths, self.local_steps)
            done = np.minimum(behaviour.steps, allowance.steps)
            steps, replies = self._play(requests, clients, done)
            lost |= self.clock.finish(allowance, done, {client: len(reply) for client, reply in replies.items()})
        arrived = {client: reply for client, reply in replies.items() if client not in lost}
        lost_bytes = sum(len(reply) for client, reply in replies.items() if client in lost)
        return Exchange(arrived, steps, lost_bytes)

    def _play(
        self, requests: Mapping[int, bytes], clients: NDArray[np.int64], done: NDArray[np.int64]
    ) -> tuple[dict[int, int], dict[int, bytes]]:
        steps = dict(zip(clients.tolist(), done.tolist(), strict=True))
        return steps, self.host.answer(requests, steps)
