"""What algorithms cost over FedAvg: rounds of all on the same work, one after the other, again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from efl.bench.fixtures import coordinator_of, quickest
from efl.bench.speed import images
from efl.config_sections import NetworkSection
from efl.federation import Federation, load
from efl.models import FlatModel, Task, build
from efl.processes import single_threaded
from efl.server.coordinator import Coordinator
from efl.server.limits import NormLimits
from efl.training.backends.selection import select_backend
from efl.training.fisher import exact_fisher

WARM_UP = 5
REFERENCE = "fedavg"
MNIST, SAMPLES = Task((1, 28, 28), 10), 64


@dataclass(frozen=True)
class Overhead:
    """Median processor milliseconds of a round, and the median of an algorithm's rounds over FedAvg's beside them."""

    what: str
    parameters: int
    milliseconds: dict[str, float]
    ratios: dict[str, float]

    def __str__(self) -> str:
        others = [
            f"{name} {self.milliseconds[name]:.1f} ms, {ratio:.2f} × FedAvg"
            for name, ratio in self.ratios.items()
            if name != REFERENCE
        ]
        fedavg = f"FedAvg {self.milliseconds[REFERENCE]:.1f} ms a round"
        return f"{self.what}, {self.parameters:,} parameters: {'; '.join([fedavg, *others])}"


def measure(repeats: int, algorithms: Sequence[str]) -> Iterator[Overhead]:
    """Rounds with complete clients, cohort 10, E = 20, B = 20, in one process."""
    names = [REFERENCE, *(name for name in algorithms if name != REFERENCE)]
    yield ratios("mlp on digits", load("digits"), "mlp", repeats, names)
    yield ratios("mlp 784-200-200-10 on images of 28 × 28", images(), "mlp200", repeats, names)
    yield ratios("cnn on images of 28 × 28", images(), "cnn_large", max(3, repeats // 15), names, warm_up=2)


def fisher_prices() -> Iterator[str]:
    """The exact Fisher diagonal over 64 samples, in training steps on as many."""
    text = Task((80,), 90, vocabulary=90)
    for network, task in {"mlp200": MNIST, "cnn_large": MNIST, "char_lstm": text}.items():
        x, y = _samples(task)
        model = FlatModel(build(network, task, 0))
        two = Federation.from_clients([(x[0], y[0])] * 2)
        rows = select_backend(model, two, 2).rows(model.w, 1)
        weights = torch.full((1, SAMPLES), 1 / SAMPLES)
        with single_threaded():
            step, _ = quickest(partial(rows.descend, 1, x, y, 1e-6))
            fisher, _ = quickest(partial(exact_fisher, rows, x, y, weights))
        yield f"exact Fisher over {SAMPLES} samples, {network}: {fisher / step:.2f} training steps"


def _samples(task: Task) -> tuple[Tensor, Tensor]:
    if task.vocabulary is None:
        return torch.rand(1, SAMPLES, *task.input_shape), torch.randint(0, task.classes, (1, SAMPLES))
    tokens = torch.randint(0, task.vocabulary, (1, SAMPLES, *task.input_shape))
    return tokens, tokens


def defence_prices(repeats: int) -> Iterator[str]:
    """What limits, and the default defence besides, as deployments have them, add to a round of EFL."""
    for what, federation, network in (("digits", load("digits"), "mlp"), ("images of 28 × 28", images(), "mlp200")):
        robust = {"plain": "none", "limited": "none", "defended": "default"}
        runs = {name: coordinator_of("efl", federation, network, {"robust": rule}) for name, rule in robust.items()}
        for name in ("limited", "defended"):
            runs[name].limits = NormLimits(NetworkSection().norm_bound)
        times = alternating(runs, repeats, WARM_UP)
        limits, both = (median(spent[name] / spent["plain"] for spent in times) - 1 for name in list(runs)[1:])
        yield f"{network} on {what}: limits add {limits:+.1%} to a round of EFL, limits and defence {both:+.1%}"


def ratios(
    what: str, federation: Federation, network: str, repeats: int, names: Sequence[str], warm_up: int = WARM_UP
) -> Overhead:
    """Medians over rounds, in which each algorithm goes first in its turn."""
    coordinators = {name: coordinator_of(name, federation, network) for name in names}
    measured = alternating(coordinators, repeats, warm_up)
    return Overhead(
        what,
        coordinators[REFERENCE].model.n,
        {name: 1e3 * median(spent[name] for spent in measured) for name in names},
        {name: median(spent[name] / spent[REFERENCE] for spent in measured) for name in names},
    )


def alternating(coordinators: Mapping[str, Coordinator], repeats: int, warm_up: int) -> list[dict[str, float]]:
    """Processor seconds of each one's rounds, after some to warm up; each goes first in its turn.

    Processor time, for other processes take turns with this one as they please.
    """
    names = list(coordinators)
    times: list[dict[str, float]] = []
    with single_threaded():
        for round_ in range(warm_up + repeats):
            turn = round_ % len(names)
            spent: dict[str, float] = {}
            for name in (*names[turn:], *names[:turn]):
                began = time.process_time()
                coordinators[name].run_round(round_)
                spent[name] = time.process_time() - began
            times.append(spent)
    return times[warm_up:]
