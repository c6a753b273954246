"""The job all frameworks do, and how a script reports; with NumPy alone, for every peer has its own environment."""

import json
import sys
import time
from collections.abc import Callable
from functools import cache
from statistics import median

import numpy as np

CLIENTS, COHORT, STEPS, BATCH, ETA, CLASSES = 100, 10, 20, 20, 0.1, 10
SAMPLES = 70_000
WARM_UP = 3


@cache
def clients() -> list[tuple[np.ndarray, np.ndarray]]:
    """Images of MNIST's shape, (samples, 28, 28, 1) in [0, 1], and labels, two classes a client."""
    rng = np.random.default_rng(0)
    size = SAMPLES // CLIENTS
    held = []
    for client in range(CLIENTS):
        labels = rng.choice([client % CLASSES, (client * 3 + 1) % CLASSES], size).astype(np.int64)
        held.append((rng.random((size, 28, 28, 1), dtype=np.float32), labels))
    return held


def arguments() -> tuple[str, int]:
    """Which network (linear, mlp200, cnn_large), and how many rounds."""
    return sys.argv[1], int(sys.argv[2])


def report(play: Callable[[int], None], rounds: int) -> None:
    """Play rounds and print the median time of one, as JSON."""
    times = []
    for round_ in range(WARM_UP + rounds):
        began = time.perf_counter()
        play(round_)
        times.append(time.perf_counter() - began)
    tell(times[WARM_UP:])


def tell(times: list[float]) -> None:
    """The last line of every script."""
    print(json.dumps({"seconds": median(times)}), flush=True)
