"""What privacy costs: accuracy and bytes of EFL beside DP-FedAvg, and of the codec that secure aggregation needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from efl.algorithms import EFL, Algorithm, ErrorFeedback, FedAvg, Privacy, SharedSupport, chain
from efl.algorithms.compression.codec import TwoWay
from efl.algorithms.compression.lattice import StochasticLattice
from efl.api import train
from efl.federation import Federation, load
from efl.fleet import Fleet

QUIET = {"evaluate_personalised_every": "never"}
PLAIN = EFL(elasticity=0.0, memory="off", drift="off")


@dataclass(frozen=True)
class Row:
    """A run: what it was, its accuracy at the end, its bytes, and the ε it spent."""

    name: str
    accuracy: float
    up: int
    down: int
    epsilon: float | None
    noise: float | None

    @classmethod
    def of(cls, name: str, summary: dict[str, Any]) -> Row:
        """The row of a summary."""
        spent, noise = summary.get("epsilon"), summary.get("noise_multiplier")
        return cls(name, summary["final_mean"], summary["bytes_up"], summary["bytes_down"], spent, noise)

    def __str__(self) -> str:
        spent = "" if self.epsilon is None else f", ε = {self.epsilon:.2f} with noise multiplier {self.noise:g}"
        return f"{self.name}: {self.accuracy:.1%}, {self.up / 1e6:.1f} MB up, {self.down / 1e6:.1f} MB down{spent}"


def private_runs(
    data_dir: str | os.PathLike[str] | None, rounds: int = 60, clients: int = 1000, cohort: int = 50, seed: int = 0
) -> Iterator[Row]:
    """MNIST of two classes per client, mlp, ε = 8 at δ = 10⁻⁵, beside the same without privacy."""
    federation = load("mnist", clients=clients, partition="classes:2", data_dir=data_dir)
    privacy = Privacy(epsilon=8.0, delta=1e-5, norm=0.5)
    learning = {"rounds": rounds, "cohort": cohort, "local_steps": 10, "learning_rate": 0.1, "seed": seed}
    algorithms: dict[str, Algorithm] = {
        "DP-FedAvg": chain(FedAvg(), privacy),
        "EFL with privacy": chain(EFL(), privacy),
        "FedAvg without": FedAvg(),
        "EFL without": EFL(),
    }
    for name, algorithm in algorithms.items():
        yield _row(name, federation, algorithm, "mlp", **learning)


def shared_supports(rounds: int = 100) -> Iterator[Row]:
    """Digits, 50 clients of two classes, 10 per round: the values of one support per round against EFL's lattice."""
    federation = load("digits", clients=50, partition="classes:2")
    yield _row("FedAvg", federation, FedAvg(), "mlp", rounds=rounds)
    yield _row("EFL", federation, EFL(), "mlp", rounds=rounds)
    for density in (0.05, 0.2):
        codec = ErrorFeedback(TwoWay(SharedSupport(density), StochasticLattice(step_down=4.0)))
        name = f"EFL, shared support of {density:.0%}"
        yield _row(name, federation, chain(PLAIN, codec=codec), "mlp", rounds=rounds)


def _row(name: str, federation: Federation, algorithm: Algorithm, model: str, **learning: Any) -> Row:
    fleet = Fleet(selection="poisson")
    arguments = {"evaluate_every": learning["rounds"], **QUIET, **learning}
    return Row.of(name, dict(train(federation, algorithm=algorithm, model=model, fleet=fleet, **arguments).summary))
