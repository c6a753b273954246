"""How long runs take: here, from a few client-steps that are measured, and on slow links, from bytes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from efl.config import Experiment
from efl.errors import UserError
from efl.processes import single_threaded
from efl.reading import parse_json, read_text, readable
from efl.runs.data import DataCache
from efl.runs.setup import build
from efl.storage import write_atomically
from efl.track.text import duration
from efl.tune.search import EVALUATIONS

UP, DOWN = 10e6 / 8, 50e6 / 8  # bytes a second of a client's link: 10 Mbit/s up, 50 Mbit/s down
CLIENTS, STEPS, ROUNDS = 2, 5, 3  # that are measured, after one round to warm up
EVALUATED = 4  # as many samples are evaluated in the time in which one is trained on


@dataclass(frozen=True)
class Speed:
    """Seconds that a plain step takes a client on one processor, and how many batches the test data are."""

    step: float
    test_batches: float


class Speeds:
    """speed.json: how fast training is with each data set, network and batch size, measured once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, Any] = {}
        if os.path.lexists(path):
            with readable(path):
                self._known = parse_json(read_text(path))
            if not isinstance(self._known, dict):
                raise UserError(f"{path}: not a table of seconds; delete it to measure anew")

    def measured(self, experiment: Experiment, data: DataCache | None = None) -> Speed:
        """How fast plain steps of this experiment are, in seconds of a processor."""
        if (known := self.known(experiment)) is not None:
            return known
        speed = speed_of(experiment, data)
        self._known[_trained(experiment)] = asdict(speed)
        write_atomically(self.path, (json.dumps(self._known, indent=1) + "\n").encode())
        return speed

    def known(self, experiment: Experiment) -> Speed | None:
        """The same, if it was measured."""
        found = self._known.get(_trained(experiment))
        try:
            return None if found is None else Speed(**{key: float(value) for key, value in found.items()})
        except (TypeError, ValueError, AttributeError):
            raise UserError(f"{self.path}: damaged; delete it to measure anew") from None


def _trained(experiment: Experiment) -> str:
    """What the time of a step depends on."""
    federation, batch = experiment.federation, experiment.training.batch_size
    return f"{federation.dataset} of {federation.clients} clients, {experiment.model.name}, batches of {batch}"


def speed_of(experiment: Experiment, data: DataCache | None = None) -> Speed:
    """The fastest of some rounds of a few clients, per client and step."""
    few = {"cohort": min(CLIENTS, experiment.federation.clients), "local_steps": STEPS}
    fleet = {"stragglers": 0.0, "inactive": 0.0}
    setup = build(experiment.with_values(training=few, fleet=fleet, engine={"workers": 1}), data=data)
    coordinator, times = setup.coordinator(), list[float]()
    with closing(coordinator.transport), single_threaded():
        for round_ in range(1 + ROUNDS):
            began = time.process_time()  # whatever else the processor has to do
            coordinator.run_round(round_)
            times.append(time.process_time() - began)
    tested = sum(map(len, setup.federation.test)) / experiment.training.batch_size
    return Speed(min(times[1:]) / (few["cohort"] * STEPS), tested)


@dataclass(frozen=True)
class Work:
    """What a column still needs: client-steps of one gradient each, evaluations of global models, and runs."""

    steps: float = 0.0
    evaluations: float = 0.0
    runs: int = 0
    searches: int = 0

    def searching(self, rounds: int, runs: float, experiment: Experiment, gradients: int) -> Work:
        """With so many rounds of a search, which are so many runs."""
        training = experiment.training
        steps = rounds * training.cohort * training.local_steps * gradients
        return replace(
            self,
            steps=self.steps + steps,
            evaluations=self.evaluations + EVALUATIONS * runs,
            searches=self.searches + 1,
        )

    def testing(self, experiment: Experiment, gradients: int) -> Work:
        """With a run on test data."""
        training, clients = experiment.training, experiment.federation.clients
        steps, evaluations = float(training.rounds * training.cohort), 0.0
        if isinstance(training.evaluate_every, int):
            evaluations = training.rounds / training.evaluate_every
        if isinstance(training.evaluate_personalised_every, int):
            steps += training.rounds / training.evaluate_personalised_every * clients
        return replace(
            self,
            steps=self.steps + steps * training.local_steps * gradients,
            evaluations=self.evaluations + evaluations,
            runs=self.runs + 1,
        )

    def said(self, speed: Speed, workers: int | None = None) -> str:
        """In words.

        >>> Work(steps=30_000, evaluations=60, runs=3, searches=1).said(Speed(0.1, 400.0), workers=1)
        '3 runs and 1 search to go, about 1.0 h with 1 worker'
        """
        count = workers or os.cpu_count() or 1
        what = " and ".join(_counted(n, word) for n, word in ((self.runs, "run"), (self.searches, "search")) if n)
        seconds = speed.step * (self.steps + self.evaluations * speed.test_batches / EVALUATED) / count
        return f"{what} to go, about {duration(seconds)} with {_counted(count, 'worker')}"


def _counted(count: int, word: str) -> str:
    """A number of things."""
    ending = "" if count == 1 else "es" if word.endswith("ch") else "s"
    return f"{count} {word}{ending}"


@dataclass(frozen=True)
class Reached:
    """What it took to reach a target: rounds, bytes both ways, and seconds on slow links."""

    rounds: int
    bytes: int
    seconds: float | None


def reached(
    curve: Sequence[Mapping[str, Any]], target: float, training: Mapping[str, Any], step: float | None
) -> Reached | None:
    """What a run took until its global model was as good as ``target``; None if it never was.

    A round lasts until its clients have received, trained and sent, all alike: each has its link, and ``step`` seconds
    for each of its steps.

    >>> points = [{"round": 9, "accuracy": 0.9, "sent_up": 50_000_000, "sent_down": 100_000_000}]
    >>> reached(points, 0.8, {"cohort": 10, "local_steps": 20}, 0.01)
    Reached(rounds=10, bytes=150000000, seconds=7.6)
    """
    for point in curve:
        if point["accuracy"] is not None and point["accuracy"] >= target and point.get("sent_up") is not None:
            rounds, up, down = point["round"] + 1, point["sent_up"], point["sent_down"]
            links = (up / UP + down / DOWN) / training["cohort"]
            computed = None if step is None else links + rounds * training["local_steps"] * step
            return Reached(rounds, up + down, computed)
    return None
