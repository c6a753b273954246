"""A round without bytes, files or processes: for tests, notebooks and teaching.

The pieces are those that the coordinator and the workers use (`efl.algorithms.pipeline`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from efl.algorithms.base import Algorithm
from efl.algorithms.pipeline import admitted, aggregate, client_state, encode_updates, resent_parts
from efl.algorithms.state import RoundSettings, ServerState, Update
from efl.federation import Federation
from efl.models import FlatModel
from efl.training.assignment import NO_ROUND, Assignment
from efl.training.backends.selection import select_backend
from efl.training.local_work import LocalWork
from efl.training.trainer import Trainer
from efl.wire import Payload


class MakesWork(Protocol):
    """What `run_round` asks of a trainer."""

    def work(
        self,
        assignments: Sequence[Assignment],
        start: Tensor,
        settings: RoundSettings,
        state: dict[str, Tensor],
        shared: Mapping[str, Payload],
    ) -> LocalWork:
        """Local work for some clients, not begun yet."""
        ...


@dataclass(frozen=True, eq=False)
class ClientState:
    """What one client keeps: its vectors, the round of its last upload, and what of that it may have to send again."""

    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    last_upload: int = NO_ROUND
    resendable: Mapping[str, Payload] = field(default_factory=dict)
    delivered: bool = True


@dataclass(frozen=True, eq=False)
class Clients:
    """All clients of a federation: who makes their work, their sample counts, and what each keeps."""

    trainer: MakesWork
    samples: Sequence[int]
    states: Mapping[int, ClientState] = field(default_factory=dict)

    @classmethod
    def of(cls, federation: Federation, model: nn.Module | FlatModel, batch_size: int = 20, seed: int = 0) -> Clients:
        """The clients of a federation, who train ``model``; as a `FlatModel`, parts of it may be frozen or personal."""
        flat = FlatModel(model) if isinstance(model, nn.Module) else model
        backend = select_backend(flat, federation, batch_size)
        return cls(Trainer(backend, federation, seed), federation.sizes.tolist())

    @property
    def settings(self) -> RoundSettings:
        """Settings to start from: round 0, η = 0.1, 20 steps of 20 samples."""
        assert isinstance(self.trainer, Trainer)
        return RoundSettings(0, 0.1, 20, 20, self.trainer.model.layout)

    @property
    def personal(self) -> int:
        """How many numbers of a model stay with each client."""
        return len(self.trainer.model.personal) if isinstance(self.trainer, Trainer) else 0

    def state(self, client: int) -> ClientState:
        """What a client keeps."""
        return self.states.get(client, ClientState())


@dataclass(frozen=True, eq=False)
class Round:
    """What came of a round: the next states, the updates that arrived, the payload that changed the model, the work.

    Rows of ``work`` are the ``participants`` in order.
    """

    server: ServerState
    clients: Clients
    updates: Sequence[Update]
    payload: Payload | None
    participants: Sequence[int]
    work: LocalWork


def run_round(
    algorithm: Algorithm,
    server: ServerState,
    clients: Clients,
    settings: RoundSettings,
    *,
    steps: Mapping[int, int] | None = None,
    lost: Collection[int] = (),
) -> Round:
    """Run one round; nothing is changed in place.

    Args:
        algorithm: Any, chained or not.
        server: The server's state; `efl.algorithms.pipeline.initial_state` makes the first one.
        clients: All clients, with what they keep.
        settings: The round's number, η, E, B and the model's layout.
        steps: How many steps each participant does; by default everybody takes part and does E.
        lost: Participants whose uploads do not arrive.

    Returns:
        The next states and what happened.

    Example:
        >>> from torch import nn
        >>> import efl
        >>> federation = efl.load("digits", clients=4, partition="iid")
        >>> clients = Clients.of(federation, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
        >>> server = ServerState(torch.zeros(650))
        >>> result = run_round(efl.FedAvg(), server, clients, clients.settings)
        >>> len(result.updates), bool(result.server.w.any())
        (4, True)
    """
    able = dict.fromkeys(range(len(clients.samples)), settings.local_steps) if steps is None else steps
    participants = sorted((client for client in able if able[client] > 0), key=lambda client: (-able[client], client))
    work = _work(algorithm, server, clients, settings, {client: able[client] for client in participants})
    uploads = encode_updates(algorithm, work, algorithm.local_update(work))
    updates: list[Update] = []
    states = dict(clients.states)
    for row, client in enumerate(participants):
        vectors = {name: matrix[row].clone() for name, matrix in work.state.items()}
        kept = {name: uploads[row][name] for name in resent_parts(algorithm)}
        states[client] = ClientState(vectors, settings.round, kept, client not in lost)
        if client not in lost:
            samples = clients.samples[client]
            share = samples / sum(clients.samples)
            updates.append(Update(client, samples, share, 1.0, 1.0, able[client], uploads[row]))
    updates.sort(key=lambda update: update.client)
    counted, server = admitted(algorithm, server, updates, settings)
    server, payload = aggregate(algorithm, server, counted, settings)
    return Round(server, replace(clients, states=states), counted, payload, participants, work)


def _work(
    algorithm: Algorithm, server: ServerState, clients: Clients, settings: RoundSettings, steps: Mapping[int, int]
) -> LocalWork:
    lengths = client_state(algorithm, len(server.w), clients.personal)
    states = [clients.state(client) for client in steps]
    assignments = [
        Assignment(
            client,
            steps[client],
            state.last_upload,
            None if state.delivered else state.resendable,
            algorithm.broadcast_to(server, client),
        )
        for client, state in zip(steps, states, strict=True)
    ]
    vectors = {
        name: torch.stack([state.vectors.get(name, torch.zeros(length)) for state in states])
        for name, length in lengths.items()
    }
    return clients.trainer.work(assignments, server.w, settings, vectors, algorithm.broadcast(server, settings))
