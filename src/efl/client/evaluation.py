"""A model for many clients to evaluate, and what they found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.base import RoundSettings
from efl.wire import Context, Dense, EvaluateRequest, encode

Clients = NDArray[np.int64]
Metrics = Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]  # by name, sums and weights of each client


@dataclass(frozen=True)
class Personalisation:
    """What personalised models are made with: a round's settings, and what each client receives for it."""

    settings: RoundSettings
    shared: Mapping[str, bytes] = field(default_factory=dict)
    personal: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class EvaluateRequests:
    """One model, and the clients that are to evaluate it on their own test data.

    With ``personalisation`` each first trains for a round and evaluates its personalised model. Transports that stay on
    one machine pass the model as it is; others send an `EvaluateRequest` to each client.
    """

    round: int
    clients: Clients
    w: Tensor
    buffers: Tensor
    personalisation: Personalisation | None = None

    def only(self, clients: Clients) -> EvaluateRequests:
        """The same for some of the clients."""
        return replace(self, clients=clients)

    def encoded(self, context: Context) -> dict[int, EvaluateRequest]:
        """A request for each client; the model is encoded once."""
        model = encode(Dense(self.w.numpy()), context)
        shared: dict[str, bytes] = {}
        if self.buffers.numel():
            shared["buffers"] = encode(Dense(self.buffers.numpy()), Context.flat(len(self.buffers)))
        if (how := self.personalisation) is None:
            return {client: EvaluateRequest(self.round, client, model, shared) for client in self.clients.tolist()}
        shared |= how.shared
        settings = how.settings
        return {
            client: EvaluateRequest(
                self.round,
                client,
                model,
                shared,
                how.personal.get(client),
                personalised=True,
                eta=settings.eta,
                local_steps=settings.local_steps,
                batch_size=settings.batch_size,
                clients=settings.clients,
            )
            for client in self.clients.tolist()
        }
