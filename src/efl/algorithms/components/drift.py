"""A control variate that costs no bytes: how everybody moves, read off the model's own movement.

A client that returns has held two of the server's models, the one it trained last and today's. Their difference over
the steps in between is everybody's mean step M, whose place in SCAFFOLD is the server's control variate, sent in full.
The client's own is its mean gradient of last time, c. During a round it steps along g + d with d = γ^L (G − c), where G
is M smoothed over the last `HORIZON` rounds, and reports its displacement without d, so that an error in G moves no
one else.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

import torch
from torch import Tensor

from efl.algorithms.components.elastic import ElasticField, StepKind, steps_under_pull
from efl.algorithms.components.shares import fade, powers
from efl.training.local_work import LocalWork

HORIZON = 20.0  # rounds over which the mean step is smoothed
GRADIENT, MEAN_STEP, LAST_START, LAST = "gradient", "mean_step", "last_start", "last"


def drift_state(n: int) -> Mapping[str, int]:
    """C, G, the model it started from last, and with which learning rate; over how many rounds G was smoothed."""
    return {GRADIENT: n, MEAN_STEP: n, LAST_START: n, LAST: 2}


def drift_of(work: LocalWork) -> Tensor:
    """D (C, n) for this round, zero for clients that work for the first time; renews G."""
    settings, state, rounds = work.settings, work.state, work.rounds_since_upload
    away = rounds.float()
    eta_then, span = state[LAST][:, :1], state[LAST][:, 1:]
    steps = settings.progress * away * (eta_then + settings.eta) / 2
    span = span * powers(exp(-1 / HORIZON), rounds)
    step = (state[LAST_START] - work.start) / steps
    mean = (span * state[MEAN_STEP] + away * step) / (span + away)
    first = work.new.unsqueeze(1)
    mean.masked_fill_(first, 0.0)
    state[MEAN_STEP] = mean
    state[LAST] = torch.cat([eta_then, (span + away).masked_fill_(first, 0.0)], dim=1)
    return ((mean - state[GRADIENT]) * powers(fade(settings.clients), rounds)).masked_fill_(first, 0.0)


def without_drift(
    work: LocalWork, drift: Tensor, field: ElasticField | None, elasticity: float, kind: StepKind
) -> Tensor:
    """The displacement (C, n) as it were without the drift; renews c, the mean gradient, and what belongs to it.

    After s steps w_s − w_0 = a_s (λU(c − w_0) − g − d)·η under a constant gradient g, where a_s is s if nothing pulls.
    """
    eta, done, optimiser = work.settings.eta, work.progress.unsqueeze(1).float(), work.settings.optimiser
    drift = drift.to(work.W.device)
    moved = work.displacement + (eta * done) * drift
    gradient = moved / (-eta * done)
    if field is not None:
        index = torch.arange(len(work.start)) if field.index is None else field.index
        progress = steps_under_pull(field, eta, elasticity, work.steps_done, kind, optimiser)
        pulled = work.displacement[:, index] + eta * progress * drift[:, index]
        moved[:, index] = pulled
        pull = elasticity * field.fisher * (field.anchor - work.start[index])
        if not optimiser.plain:  # momentum gathers gradients, but not the pull
            pull = pull * steps_under_pull(field, eta, elasticity, work.steps_done, kind) / progress
        gradient[:, index] = pull - pulled / (eta * progress)
    work.state[GRADIENT] = gradient
    work.state[LAST_START] = work.start.expand_as(moved).clone()
    work.state[LAST][:, 0] = eta
    return moved
