"""What is asked of every round, and what is told of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from efl.server.membership import Change
from efl.training.schedules import Schedule


@dataclass(frozen=True)
class Plan:
    """What training asks of a round: cohort size, E, B, η, its schedule, whether that restarts, and the seed."""

    cohort: int
    local_steps: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    restart: bool
    seed: int


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round: by client the steps done, whose work was counted, who was refused, loss, bytes.

    Also who came and went, where rounds take simulated time, the time at its end, and whether the server forgot all but
    the model, because no reply was of use any more.
    """

    round: int
    eta: float
    steps: Mapping[int, int]
    counted: list[int]
    refused: Mapping[int, str]
    train_loss: float
    bytes: Mapping[str, Mapping[str, int]]
    changes: list[Change]
    time: float | None
    forgot: bool = False
