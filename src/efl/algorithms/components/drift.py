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
from efl.algorithms.components.shares import fade
from efl.algorithms.state import RoundSettings
from efl.training.assignment import NO_ROUND
from efl.training.local_work import LocalWork

_NEW = (0.0, 0.0, 0.0, 0.0)
HORIZON = 20.0  # rounds over which the mean step is smoothed
GRADIENT, MEAN_STEP, LAST_START, LAST = "gradient", "mean_step", "last_start", "last"


def drift_state(n: int) -> Mapping[str, int]:
    """C, G, the model it started from last, and with which learning rate; over how many rounds G was smoothed."""
    return {GRADIENT: n, MEAN_STEP: n, LAST_START: n, LAST: 2}


def drift_of(work: LocalWork) -> Tensor:
    """D (C, n) for this round, zero for clients that work for the first time; renews G."""
    settings, state = work.settings, work.state
    factors = [
        _factors(max(settings.round - one.last_upload, 1), eta, span, settings) if one.last_upload != NO_ROUND else _NEW
        for one, (eta, span) in zip(work.assignments, state[LAST].tolist(), strict=True)
    ]
    old, moved, faded, span = torch.tensor(factors, device=work.W.device).T.unsqueeze(2)
    drift = state[LAST_START] - work.start
    mean = state[MEAN_STEP].mul_(old).add_(drift.mul_(moved))
    state[LAST][:, 1:] = span
    return torch.sub(mean, state[GRADIENT], out=drift).mul_(faded)


def _factors(away: int, eta_then: float, span: float, settings: RoundSettings) -> tuple[float, float, float, float]:
    """By what G, the model's movement since, and the drift are multiplied; over how many rounds G is smoothed then."""
    span *= exp(-away / HORIZON)
    steps = settings.progress * (eta_then + settings.eta) / 2
    return span / (span + away), 1 / (steps * (span + away)), fade(settings.clients) ** away, span + away


def without_drift(
    work: LocalWork, drift: Tensor, field: ElasticField | None, elasticity: float, kind: StepKind
) -> Tensor:
    """The displacement (C, n) as it were without the drift; renews c, the mean gradient, and what belongs to it.

    After s steps w_s − w_0 = a_s (λU(c − w_0) − g − d)·η under a constant gradient g, where a_s is s if nothing pulls.
    """
    eta, done, optimiser = work.settings.eta, work.progress.unsqueeze(1).float(), work.settings.optimiser
    drift = drift.to(work.W.device)
    displacement = work.displacement
    moved = torch.addcmul(displacement, drift, eta * done)
    gradient = torch.mul(moved, -1 / (eta * done), out=work.state[GRADIENT])
    if field is not None:
        index = torch.arange(len(work.start)) if field.index is None else field.index
        progress = steps_under_pull(field, eta, elasticity, work.steps_done, kind, optimiser)
        pulled = displacement[:, index] + eta * progress * drift[:, index]
        moved[:, index] = pulled
        pull = elasticity * field.fisher * (field.anchor - work.start[index])
        if not optimiser.plain:  # momentum gathers gradients, but not the pull
            pull = pull * steps_under_pull(field, eta, elasticity, work.steps_done, kind) / progress
        gradient[:, index] = pull - pulled / (eta * progress)
    work.state[LAST_START].copy_(work.start)
    work.state[LAST][:, 0] = eta
    return moved
