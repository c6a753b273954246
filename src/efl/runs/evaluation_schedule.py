"""When models are looked at, and whose: by default such that looking takes about a tenth of a run's time."""

from __future__ import annotations

import math

from efl.config import TrainingSection
from efl.federation import Federation
from efl.rng import Purpose, stream

SHARE = 0.05  # of a run, for looks at the global model, and for looks at own models
USUAL = 10  # rounds between two looks, where nothing speaks for more
QUICKER = 4  # as many samples are answered in the time in which one is trained on


def global_spacing(training: TrainingSection, federation: Federation) -> int:
    """Rounds between two looks at the global model, on all test data; a multiple of ten by default."""
    if training.evaluate_every != "auto":
        return training.evaluate_every
    trained = training.cohort * training.local_steps * training.batch_size
    rounds = sum(map(len, federation.test)) / QUICKER / (SHARE * trained)
    return USUAL * max(1, math.ceil(rounds / USUAL))


def own_spacing(training: TrainingSection, clients: int, spacing: int) -> int:
    """Rounds between two looks at the clients' own models.

    Each look trains every client for a round. They come with looks at the global model, so what is asked for is rounded
    up to a multiple of those.
    """
    wanted = training.evaluate_own_every
    rounds = clients / training.cohort / SHARE if isinstance(wanted, str) else wanted
    return max(1, math.ceil(rounds / spacing)) * spacing


def looked_at(training: TrainingSection, clients: int) -> list[int]:
    """The clients whose own models are looked at: all, or as many, drawn at random, as one look can afford."""
    affordable = max(training.cohort, int(SHARE * training.rounds * training.cohort))
    if training.evaluate_own_every != "auto" or affordable >= clients:
        return list(range(clients))
    drawn = stream(training.seed, Purpose.OWN_MODEL).choice(clients, affordable, replace=False)
    return sorted(drawn.tolist())
