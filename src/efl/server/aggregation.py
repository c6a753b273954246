"""From validated replies to the next model. Pure functions: state goes in and comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms import pipeline
from efl.algorithms.base import Algorithm, RoundSettings, ServerState, Update
from efl.algorithms.components.late import moved_to
from efl.algorithms.components.reduction import averaged_model
from efl.algorithms.components.weights import by_samples
from efl.errors import DivergedError
from efl.server.client_table import ClientTable
from efl.server.loss_limit import MAX_LOSS
from efl.server.replies import ValidReply
from efl.server.started import StartedRound
from efl.wire import Context, Dense, encode


@dataclass(frozen=True)
class Aggregate:
    """The server after a round, and the encoded change of the model, if it changed.

    ``absolute`` if the change is a whole model, not an increment; ``trust`` is how far each client's update counted.
    """

    server: ServerState
    buffers: Tensor
    trust: Mapping[int, float] = field(default_factory=dict)
    change: bytes | None = None
    absolute: bool = False


def updates_of(
    replies: Mapping[int, ValidReply],
    begun: Mapping[int, StartedRound],
    table: ClientTable,
    settings: RoundSettings,
    w: Tensor,
) -> list[Update]:
    """The clients' updates, each with its share and the probability that it is in the aggregate.

    Args:
        replies: The replies that count, by client.
        begun: The round in which each of them was asked.
        table: What is known of clients.
        settings: Of the round that uses the replies.
        w: Its model, for which updates that started from another one are made over.
    """
    samples, shares, rates = (
        of_all[list(replies)].tolist() for of_all in (table.samples, table.shares, table.response_rates())
    )
    starts = {client: begun[client].start(settings) for client in replies}
    return [
        Update(
            client=client,
            samples=samples[place],
            share=shares[place],
            sampling_probability=begun[client].probability[client],
            response_rate=rates[place],
            steps=reply.steps,
            parts=reply.parts if (start := starts[client]) is None else moved_to(reply.parts, start.w, w),
            staleness=begun[client].staleness(settings),
            start=start,
        )
        for place, (client, reply) in enumerate(replies.items())
    ]


def aggregate(
    algorithm: Algorithm,
    server: ServerState,
    buffers: Tensor,
    updates: Sequence[Update],
    settings: RoundSettings,
    context: Context,
) -> Aggregate:
    """The next model: what the algorithm makes of the updates, and the bytes by which clients' copies change.

    Raises:
        DivergedError: The aggregate is not finite.
    """
    updates, server = pipeline.admitted(algorithm, server, updates, settings)
    server, change = pipeline.aggregate(algorithm, server, updates, settings)
    buffers, trust = average_buffers(buffers, updates), {update.client: update.trust for update in updates}
    if change is None:
        return Aggregate(server, buffers, trust)
    if not change.changes_vector:
        raise TypeError(f"{type(change).__name__} is not a change of the model")
    if not all_finite(change.values, algorithm.evaluated_model(server).numpy(), server.w.numpy()):
        raise DivergedError("the aggregate is not finite")
    return Aggregate(server, buffers, trust, encode(change, context), change.absolute)


def average_buffers(buffers: Tensor, updates: Sequence[Update]) -> Tensor:
    """BatchNorm statistics and the like: their mean over the updates, by sample count."""
    if not buffers.numel() or not updates:
        return buffers
    updates = [update for update in updates if update.trust > 0]
    if not updates:
        return buffers
    trusted = math.fsum(update.trust * update.samples for update in updates)
    weights = [update.trust * update.samples / trusted for update in updates]
    payloads = [update.parts["buffers"] for update in updates]
    return averaged_model(buffers, [part for part in payloads if isinstance(part, Dense)], weights)


def mean_loss(replies: Mapping[int, ValidReply], table: ClientTable, round_: int, most: float = MAX_LOSS) -> float:
    """The mean training loss, by sample count; NaN without replies.

    Raises:
        DivergedError: It is larger than ``most``.
    """
    if not replies:
        return math.nan
    samples = table.samples
    weights = by_samples([int(samples[client]) for client in replies])
    loss = math.fsum(weight * reply.loss for weight, reply in zip(weights, replies.values(), strict=True))
    if loss > most:
        raise DivergedError(f"the training loss is {loss:.3g} in round {round_}")
    return loss


def is_finite(result: Aggregate) -> bool:
    """Whether a server can go on from here."""
    server = result.server
    return all_finite(*(tensor.numpy() for tensor in (server.w, result.buffers, *server.tensors.values())))


def all_finite(*vectors: NDArray[np.float32]) -> bool:
    """Whether no entry is NaN or infinite; NumPy finds out twenty times as quickly as PyTorch."""
    return all(bool(np.isfinite(vector).all()) for vector in vectors)
