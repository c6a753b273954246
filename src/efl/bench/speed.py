"""Rounds a second, against the loop that a researcher would write in PyTorch, on the same work in the same minute."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efl.bench.fixtures import setup_of
from efl.federation import Federation
from efl.processes import processors, single_threaded

JOBS = {"logistic regression": "linear", "mlp 784-200-200-10": "mlp200", "cnn": "cnn_large"}
CLIENTS, COHORT, STEPS, BATCH, ETA = 100, 10, 20, 20, 0.1
WARM_UP = 2
REST = 0.25  # seconds, in which the plain loop's threads stop spinning


@dataclass(frozen=True)
class Speed:
    """Samples a second of both, the median of the ratios of neighbouring rounds, and the share of the GEMM peak."""

    what: str
    workers: int
    plain: float
    ours: float
    ratio: float
    peak: float

    def __str__(self) -> str:
        return (
            f"{self.what}: plain loop {self.plain:,.0f}, efl with {self.workers} workers {self.ours:,.0f} samples/s, "
            f"{self.ratio:.2f} × the plain loop; {self.peak:.0%} of the processors' peak in matrix products"
        )


def measure(rounds: int, workers: int | None = None) -> Iterator[Speed]:
    """FedAvg on images of MNIST's shape, 2 classes a client; the plain loop has all processors as threads."""
    workers = workers or processors()
    for what, network in JOBS.items():
        yield ratio(what, network, rounds if network != "cnn_large" else max(3, rounds // 8), workers)


def ratio(what: str, network: str, rounds: int, workers: int) -> Speed:
    """A round of each in turn."""
    federation = images()
    setup = setup_of("fedavg", federation, network, {"cohort": COHORT}, {"workers": workers})
    coordinator = setup.coordinator()
    loop = PlainLoop(setup.model.module_at(setup.model.w, setup.model.buffers), federation)
    times: list[tuple[float, float]] = []
    with closing(coordinator.transport):
        coordinator.transport.start()
        for round_ in range(WARM_UP + rounds):
            time.sleep(REST)
            began = time.perf_counter()
            with single_threaded():
                coordinator.run_round(round_)
            between = time.perf_counter()
            loop.run_round(round_)
            times.append((between - began, time.perf_counter() - between))
    times = times[WARM_UP:]
    samples = COHORT * STEPS * BATCH
    ours, plain = (samples / median(column) for column in zip(*times, strict=True))
    needed = 6 * multiplications(setup.model.module_at(setup.model.w, setup.model.buffers), federation.input_shape)
    return Speed(what, workers, plain, ours, median(p / o for o, p in times), ours * needed / peak_flops(workers))


def workers_gain(rounds: int, workers: int | None = None) -> Iterator[str]:
    """A round with several workers against one with a single process, in turn, on large networks."""
    workers = workers or processors()
    for network, federation in (("cnn_large", images()), ("char_lstm", texts())):
        one, many = (
            setup_of("fedavg", federation, network, {"cohort": COHORT}, {"workers": n}).coordinator()
            for n in (1, workers)
        )
        times: list[list[float]] = [[], []]
        with single_threaded(), closing(one.transport), closing(many.transport):
            many.transport.start()
            for round_ in range(1 + rounds):
                for coordinator, spent in zip((one, many), times, strict=True):
                    began = time.perf_counter()
                    coordinator.run_round(round_)
                    spent.append(time.perf_counter() - began)
        gain = median(alone / shared for alone, shared in list(zip(*times, strict=True))[1:])
        yield f"{network}: {workers} workers are {gain:.2f} × as fast as one"


def texts(clients: int = CLIENTS) -> Federation:
    """Random characters, 80 to a sample, each to be followed by the next."""
    tokens = torch.randint(0, 90, (50 * clients, 81), generator=torch.Generator().manual_seed(0))
    return Federation.from_tensors(tokens[:, :-1], tokens[:, 1:], clients=clients, partition="iid", vocabulary=90)


def images(clients: int = CLIENTS) -> Federation:
    """Noise in MNIST's shape: what is in the images does not matter for time."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (70_000, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return Federation.from_tensors(x, torch.arange(70_000) % 10, clients=clients, partition="classes:2")


class PlainLoop:
    """FedAvg as one writes it down: a copy of the model for each client, an optimiser, a mean of state dicts."""

    def __init__(self, model: nn.Module, federation: Federation) -> None:
        self.model, self.federation = model, federation
        for parameter in model.parameters():  # as PyTorch lays them out, not channels last as they are here
            parameter.data = parameter.data.contiguous()
        assert isinstance(federation.x, Tensor)
        self.x = federation.x.float() / 255
        self.threads = processors()

    def run_round(self, round_: int) -> None:
        """One round, with all threads."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        rng = np.random.default_rng(round_)
        states = [self._trained(client, rng) for client in rng.choice(CLIENTS, COHORT, replace=False)]
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
        self.model.load_state_dict(mean)
        torch.set_num_threads(before)

    def _trained(self, client: int, rng: np.random.Generator) -> dict[str, Tensor]:
        model = copy.deepcopy(self.model).train()
        optimiser = torch.optim.SGD(model.parameters(), lr=ETA)
        order = np.resize(rng.permutation(self.federation.train[client]), STEPS * BATCH)
        for batch in torch.from_numpy(order.reshape(STEPS, BATCH)):
            optimiser.zero_grad()
            loss: Tensor = F.cross_entropy(model(self.x[batch]), self.federation.y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return model.state_dict()


def multiplications(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Of a forward pass of one sample, in linear and convolution layers; training takes three times as many."""
    total = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Linear):
            total += layer.weight.numel()
        elif isinstance(layer, nn.Conv2d):
            total += layer.weight.numel() * output.shape[-1] * output.shape[-2]

    for layer in module.modules():
        layer.register_forward_hook(count)
    with torch.no_grad():
        module(torch.zeros(1, *shape))
    return total


def peak_flops(threads: int, size: int = 1536) -> float:
    """Floating-point operations a second in one large matrix product."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, best = torch.rand(size, size), 0.0
    for _ in range(5):
        began = time.perf_counter()
        torch.mm(a, a)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    torch.set_num_threads(before)
    return best
