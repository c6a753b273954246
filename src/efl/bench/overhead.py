"""What EFL costs over FedAvg: rounds of both on the same work, one after the other, again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import torch

from efl.bench.setting import coordinator_of
from efl.engine.processor import quick_arithmetic
from efl.federation import Federation, load

WARM_UP = 5


@dataclass(frozen=True)
class Overhead:
    """Median round times in milliseconds, and the median of their ratios."""

    what: str
    parameters: int
    fedavg_ms: float
    efl_ms: float
    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.what}, {self.parameters:,} parameters: FedAvg {self.fedavg_ms:.1f} ms, "
            f"EFL {self.efl_ms:.1f} ms a round, EFL / FedAvg {self.ratio:.2f}"
        )


def measure(repeats: int) -> Iterator[Overhead]:
    """EFL against FedAvg with complete clients, cohort 10, E = 20, B = 20."""
    images = torch.rand(2000, 784, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(2000) % 10
    large = Federation.from_tensors(images, labels, clients=50, partition="classes:2")
    yield ratio("mlp on digits", load("digits"), "mlp", repeats)
    yield ratio("mlp 784-200-200-10 on random images", large, "mlp200", repeats)


def ratio(what: str, federation: Federation, network: str, repeats: int) -> Overhead:
    """Median over pairs of neighbouring rounds."""
    pair = [coordinator_of(name, federation, network) for name in ("fedavg", "efl")]
    times: list[tuple[float, float]] = []
    with quick_arithmetic():
        for round_ in range(WARM_UP + repeats):
            order = (0, 1) if round_ % 2 == 0 else (1, 0)
            spent = [0.0, 0.0]
            for which in order:
                began = time.perf_counter()
                pair[which].play(round_)
                spent[which] = time.perf_counter() - began
            times.append((spent[0], spent[1]))
    measured = times[WARM_UP:]
    return Overhead(
        what,
        pair[0].model.n,
        1e3 * median(fedavg for fedavg, _ in measured),
        1e3 * median(efl for _, efl in measured),
        median(efl / fedavg for fedavg, efl in measured),
    )
