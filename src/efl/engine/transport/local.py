"""Clients in this process, with the fleet's behaviour played out on the way."""

from collections.abc import Mapping

import numpy as np

from efl.engine.client import ClientHost
from efl.engine.transport.protocol import Exchange
from efl.fleet import Fleet


class LocalTransport:
    """Hands requests to a `ClientHost`; the fleet decides who works how long and whose reply is lost."""

    def __init__(self, host: ClientHost, fleet: Fleet, seed: int, local_steps: int) -> None:
        self.host, self.fleet, self.seed, self.local_steps = host, fleet, seed, local_steps

    def exchange(self, round_: int, requests: Mapping[int, bytes]) -> Exchange:
        """One round: inactive clients stay silent, stragglers stop early, some replies never arrive."""
        clients = np.array(list(requests), dtype=np.int64)
        behaviour = self.fleet.behave(self.seed, round_, clients, self.local_steps)
        steps = {int(client): int(done) for client, done in zip(clients, behaviour.steps, strict=True)}
        replies = self.host.answer(requests, steps)
        lost = {int(client) for client, gone in zip(clients, behaviour.lost, strict=True) if gone}
        arrived = {client: reply for client, reply in replies.items() if client not in lost}
        lost_bytes = sum(len(reply) for client, reply in replies.items() if client in lost)
        return Exchange(arrived, steps, lost_bytes)
