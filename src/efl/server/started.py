"""The round in which a client was asked: what its reply is decoded and validated by, and relative to.

A reply belongs to that round, whenever it comes. What is needed of a round is kept for as long as one of its clients is
at work; a round that uses all its replies keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efl.algorithms.base import RoundSettings
from efl.algorithms.state import Start
from efl.wire import Context, decode
from efl.wire.parts import coding_context

NUMBERS = ("round", "eta", "local_steps", "batch_size", "clients", "coarseness", "cohort", "coarseness_down")
CODED_BY = "coded_by"


@dataclass(frozen=True, eq=False)
class StartedRound:
    """A round as its clients began it.

    Attributes:
        settings: Its settings.
        version: The version of the model that its clients have.
        w: That model.
        buffers: Its float buffers.
        context: What increments are coded by.
        coded_by: The encoded payload of which that knows a field; empty if it knows none.
        probability: With what probability each of its clients was sampled.
    """

    settings: RoundSettings
    version: int
    w: Tensor
    buffers: Tensor
    context: Context
    coded_by: bytes = b""
    probability: Mapping[int, float] = field(default_factory=dict)

    def staleness(self, now: RoundSettings) -> int:
        """How many rounds before ``now`` it began."""
        return now.round - self.settings.round

    def start(self, now: RoundSettings) -> Start | None:
        """What an update of this round started from; None if that is what the round ``now`` starts from."""
        if self.settings.round == now.round:
            return None
        then = self.settings
        return Start(then, self.w, now.eta * now.local_steps / (then.eta * then.local_steps))


def state_of(at_work: Mapping[int, StartedRound]) -> dict[str, Any]:
    """The rounds that clients at work started in, by their number."""
    clients: dict[int, list[int]] = {}
    rounds = {one.settings.round: one for one in at_work.values()}
    for client, one in sorted(at_work.items()):
        clients.setdefault(one.settings.round, []).append(client)
    return {
        str(number): {
            "settings": {name: getattr(one.settings, name) for name in NUMBERS},
            "version": one.version,
            "w": one.w.clone(),
            "buffers": one.buffers.clone(),
            CODED_BY: torch.from_numpy(np.frombuffer(one.coded_by, dtype=np.uint8).copy()),
            "clients": clients[number],
            "probability": [one.probability[client] for client in clients[number]],
        }
        for number, one in rounds.items()
    }


def at_work_of(state: Mapping[str, Any], like: RoundSettings, plain: Context) -> dict[int, StartedRound]:
    """What `state_of` was given; what all rounds have in common is as in ``like``."""
    at_work: dict[int, StartedRound] = {}
    for known in state.values():
        coded_by = known[CODED_BY].numpy().tobytes()
        context = coding_context({CODED_BY: decode(coded_by, plain)}, plain) if coded_by else plain
        chances = dict(zip(known["clients"], known["probability"], strict=True))
        settings = replace(like, **known["settings"])
        at_work |= dict.fromkeys(
            known["clients"],
            StartedRound(settings, known["version"], known["w"], known["buffers"], context, coded_by, chances),
        )
    return dict(sorted(at_work.items()))
