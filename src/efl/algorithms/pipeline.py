"""The way of a round's updates through an algorithm, its transformations and its codec, on both sides.

Pure functions: no bytes, files or processes. The coordinator and the workers call them, and so does `run_round`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from efl.algorithms.base import Algorithm
from efl.algorithms.components.reduction import Aggregate
from efl.algorithms.compression.codec import OnSent
from efl.algorithms.state import UPDATE, Part, Parts, RoundSettings, ServerState, Update
from efl.algorithms.transform import Release, Transform, overrides
from efl.errors import UserError
from efl.training.assignment import PERSONAL
from efl.training.local_work import LocalWork
from efl.wire import Payload


def upload_parts(algorithm: Algorithm) -> dict[str, Part]:
    """All parts of an upload: the encoded delta, and what the algorithm sends besides."""
    update = algorithm.codec.part
    kept = update.resend or any(transform.keeps_uploads for transform in algorithm.transforms)
    return {UPDATE: replace(update, resend=kept), **algorithm.parts}


def resent_parts(algorithm: Algorithm) -> list[str]:
    """The parts that clients keep until they are known to have arrived."""
    return [name for name, part in upload_parts(algorithm).items() if part.resend]


def client_state(algorithm: Algorithm, n: int, personal: int = 0) -> dict[str, int]:
    """All vectors that a client keeps between rounds, and how long each is; ``personal`` is what never travels."""
    state = dict(algorithm.client_state(n))
    if personal:
        state[PERSONAL] = personal
    for transform in algorithm.transforms:
        state |= transform.client_state(n)
    state |= algorithm.codec.client_state(n)
    return state


def initial_state(algorithm: Algorithm, w: Tensor) -> ServerState:
    """The server's state before the first round."""
    w = algorithm.codec.start(w)
    server = algorithm.init(w).having(**algorithm.codec.init(w))
    for transform in algorithm.transforms:
        server = server.having(**transform.init(w))
    return server


def encode_updates(algorithm: Algorithm, work: LocalWork, extra: Mapping[str, Sequence[Payload]]) -> list[Parts]:
    """What each row of ``work`` uploads, once it is trained; ``extra`` is what `local_update` returned."""
    for transform in algorithm.transforms:
        if overrides(transform, "on_client"):
            work.delta = transform.on_client(work.delta, work)
    updates = algorithm.codec.encode_up(work, _on_sent(algorithm.transforms))
    algorithm.on_encoded(work, updates)
    for transform in algorithm.transforms:
        transform.on_encoded(work, updates)
    return [
        {UPDATE: update, **{name: payloads[row] for name, payloads in extra.items()}}
        for row, update in enumerate(updates)
    ]


def _on_sent(transforms: Sequence[Transform]) -> OnSent | None:
    stages = [transform.on_sent for transform in transforms if overrides(transform, "on_sent")]
    if not stages:
        return None
    return lambda total, work: reduce(lambda deltas, stage: stage(deltas, work), stages, total)


def admitted(
    algorithm: Algorithm, server: ServerState, updates: Sequence[Update], settings: RoundSettings
) -> tuple[Sequence[Update], ServerState]:
    """The updates as far as they count, after what defends an algorithm, in reverse; and the server's state."""
    guards = [one for one in reversed(algorithm.transforms) if overrides(one, "admit") or overrides(one, "reduce")]
    if not guards or not updates:
        return updates, server
    updates = [replace(one, fidelity=algorithm.codec.fidelity(one.sent, one.settings(settings))) for one in updates]
    for memory in [one for one in algorithm.transforms if overrides(one, "remembered")]:
        updates = [replace(one, remembered=memory.remembered(one.sent, one.settings(settings))) for one in updates]
    for transform in guards:
        updates, server = transform.admit(updates, server, settings)
    return updates, server


def aggregate(
    algorithm: Algorithm, server: ServerState, updates: Sequence[Update], settings: RoundSettings
) -> tuple[ServerState, Payload | None]:
    """The server's next state, and the payload by which its model and every client's copy change, if they do.

    ``updates`` are `admitted` ones.
    """
    release, updates = release_of(algorithm), [update for update in updates if update.trust > 0]
    if not updates and release is None:
        return server, None
    payload: Payload | None = None
    w_next = server.w
    if algorithm.changes_model(settings):
        if release is None:
            proposed = _reduced(algorithm, server, updates, settings)
        else:
            delta, server = release(updates, server, settings)
            proposed, updates = Aggregate(server.w, [], [], delta=delta), Withheld()
        proposed, server = _transformed(algorithm, proposed, server, updates, settings)
        payload, server = algorithm.codec.encode_down(proposed, server, settings)
        w_next = torch.from_numpy(payload.onto(server.w.numpy()))
    server = algorithm.server_update(server, updates, w_next, settings)
    return ServerState(w_next, server.tensors), payload


def release_of(algorithm: Algorithm) -> Release | None:
    """What alone may see the updates, if there is such a transformation."""
    return next((t.release for t in reversed(algorithm.transforms) if t.release is not None), None)


class Withheld(Sequence[Update]):
    """The updates of a round in place of which only what was released may be used: looking at them is refused."""

    def _refuse(self, *_: object) -> Any:
        raise UserError("privacy: the algorithm, or a transformation, uses single updates; choose efl, fedavg or such")

    __len__ = __getitem__ = __iter__ = __bool__ = __contains__ = _refuse


def _reduced(
    algorithm: Algorithm, server: ServerState, updates: Sequence[Update], settings: RoundSettings
) -> Aggregate:
    """Σ weight_k · delta_k."""
    weights = algorithm.weights(updates, settings)
    if len(weights) != len(updates):
        name = type(algorithm).__name__
        raise UserError(f"{name}.weights gives {len(weights)} weights for {len(updates)} updates; return one for each")
    for transform in algorithm.transforms:
        weights = transform.weigh(weights, updates)
    deltas = [update.delta for update in updates]
    return Aggregate(server.w, deltas, weights, fmean(update.sampling_probability for update in updates))


def _transformed(
    algorithm: Algorithm,
    proposed: Aggregate,
    server: ServerState,
    updates: Sequence[Update],
    settings: RoundSettings,
) -> tuple[Aggregate, ServerState]:
    """What the transformations make of it, in reverse."""
    for transform in reversed(algorithm.transforms):
        if overrides(transform, "on_server"):
            delta, server = transform.on_server(proposed.delta, updates, server, settings)
            proposed = proposed.having(delta)
    return proposed, server
