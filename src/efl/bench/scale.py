"""How time and memory grow with the number of clients, the cohort, the parameters and the workers."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from efl.bench.fixtures import setup_of
from efl.federation import Federation
from efl.processes import single_threaded

WARM_UP = 2
POOL, TRAIN, TEST = 20_000, 40, 4  # samples in all, and of a client; clients share them


@dataclass(frozen=True)
class Point:
    """A setting, what it takes to start, a round, and the memory of all its processes without files' pages."""

    clients: int
    cohort: int
    network: str
    parameters: int
    workers: int
    start: float
    round: float
    memory: float

    def __str__(self) -> str:
        return (
            f"{self.clients:>7,} clients, cohort {self.cohort:>3}, {self.network} ({self.parameters:,} parameters), "
            f"{self.workers} workers: start {self.start:.1f} s, round {1e3 * self.round:.0f} ms, "
            f"memory {self.memory:.0f} MB"
        )


def measure(rounds: int, most_clients: int = 100_000) -> Iterator[Point]:
    """EFL, one thing after another growing; every point in a process of its own, whose memory nobody used before."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as fresh:
        for setting in settings(rounds, most_clients):
            yield fresh.submit(point, *setting).result()


def settings(rounds: int, most_clients: int) -> Iterator[tuple[int, int, str, int, int]]:
    """Clients, cohort, network, workers, rounds of each point; 1000, 10, mlp200, 1 is in the middle of all."""
    clients = 100
    while clients <= most_clients:
        yield clients, 10, "mlp200", 1, rounds
        clients *= 10
    for cohort in (30, 100):
        yield 1000, cohort, "mlp200", 1, max(3, rounds // 4)
    for network in ("linear", "cnn", "cnn_large"):
        yield 1000, 10, network, 1, 3 if network == "cnn_large" else rounds
    for workers in (2, 4):
        yield 1000, 10, "mlp200", workers, rounds


def point(clients: int, cohort: int, network: str, workers: int, rounds: int) -> Point:
    """Start, and run some rounds."""
    began = time.perf_counter()
    federation = many_clients(clients)
    setup = setup_of("efl", federation, network, {"cohort": cohort}, {"workers": workers})
    coordinator = setup.coordinator()
    with closing(coordinator.transport), single_threaded():
        coordinator.transport.start()
        start = time.perf_counter() - began
        times: list[float] = []
        for round_ in range(WARM_UP + rounds):
            began = time.perf_counter()
            coordinator.run_round(round_)
            times.append(time.perf_counter() - began)
        return Point(clients, cohort, network, setup.model.n, workers, start, median(times[WARM_UP:]), _megabytes())


def many_clients(count: int) -> Federation:
    """Any number of clients with random samples of one pool of images."""
    rng = np.random.default_rng(0)
    x = torch.randint(0, 256, (POOL, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    held = rng.integers(0, POOL, (count, TRAIN + TEST))
    return Federation(x, torch.arange(POOL) % 10, list(held[:, :TRAIN]), list(held[:, TRAIN:]), classes=10)


def _megabytes() -> float:
    """Memory in use now, by this process and its workers; what they share counts once. 0 where Linux does not tell."""
    kilobytes = 0
    for pid in (os.getpid(), *(worker.pid for worker in multiprocessing.active_children())):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            return 0.0
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return kilobytes * 1024 / 1e6
