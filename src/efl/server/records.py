"""The settings of a run's rounds, and the record of one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from efl.server.membership import Change
from efl.training.optimisers import PLAIN_SGD, Optimiser
from efl.training.schedules import Schedule


@dataclass(frozen=True)
class TrainingSettings:
    """What all rounds have in common: cohort, E, B, η, its schedule, whether that restarts, seed, optimiser.

    ``loss_in_nats``: the size of a training loss does not depend on the units of the targets. ``buffer``: the replies
    with which a round ends; None for those of the whole cohort. ``rounds`` are those planned; 0: nobody knows.
    """

    cohort: int
    local_steps: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    restart: bool
    seed: int
    optimiser: Optimiser = PLAIN_SGD
    loss_in_nats: bool = True
    buffer: int | None = None
    rounds: int = 0

    @property
    def replies(self) -> int:
        """How many clients a round hears of, if all reply."""
        return self.buffer or self.cohort


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round.

    Attributes:
        round: Its number, from 0.
        eta: The learning rate.
        steps: The local steps of each client that was sampled and is not at work any longer.
        aggregated: The clients whose updates are in the new model.
        rejected: The clients whose replies were rejected, and why.
        train_loss: The mean training loss of the aggregated clients.
        bytes: Bytes sent, by direction and kind.
        changes: Clients that arrived, departed, were abandoned or returned.
        time: Where time is simulated, the time at the end of the round.
        server_state_reset: All replies were rejected for some rounds, so all but the model's weights was reset.
        trust: How much the updates of the aggregated clients counted, where that is not in full.
        staleness: In asynchronous rounds, how many rounds ago the aggregated updates started, on average.
    """

    round: int
    eta: float
    steps: Mapping[int, int]
    aggregated: list[int]
    rejected: Mapping[int, str]
    train_loss: float
    bytes: Mapping[str, Mapping[str, int]]
    changes: list[Change]
    time: float | None
    server_state_reset: bool = False
    trust: Mapping[int, float] = field(default_factory=dict)
    staleness: float | None = None
