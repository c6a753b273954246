"""Evaluation: when, of which clients, and how good models are on each client's own test data.

By default evaluation takes about 10 % of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.client.evaluation import EvaluateRequests, Personalisation
from efl.config_sections import TrainingSection
from efl.rng import Purpose, stream
from efl.runs.directory import Record
from efl.server.coordinator import Coordinator
from efl.training.tasks import Objective
from efl.wire import encode

Values = NDArray[np.float64]  # of a metric, by client; NaN where it is unknown
Scores = Mapping[str, Values]  # by the name of the metric

SHARE = 0.05  # of a run, for evaluations of the global model, and of personalised models
USUAL = 10  # rounds between two evaluations, where nothing speaks for more
MOST_LISTED = 1000  # clients whose metric of merit a record has
SPEED = 4  # as many samples are evaluated in the time in which one is trained on


@dataclass(frozen=True)
class EvaluationSchedule:
    """When models are evaluated.

    Attributes:
        training: The settings of the run.
        clients: How many clients there are.
        interval: Rounds between two evaluations of the global model, on all test data.
    """

    training: TrainingSection
    clients: int
    interval: int

    @classmethod
    def of(cls, training: TrainingSection, clients: int, test_samples: int) -> EvaluationSchedule:
        """The schedule for a federation with so many test samples; by default the interval is a multiple of ten."""
        if training.evaluate_every != "auto":
            return cls(training, clients, training.evaluate_every)
        trained = training.replies * training.local_steps * training.batch_size
        rounds = test_samples / SPEED / (SHARE * trained)
        return cls(training, clients, USUAL * max(1, math.ceil(rounds / USUAL)))

    @property
    def personalised_interval(self) -> int:
        """Rounds between two evaluations of personalised models.

        Each trains every client for a round. They come with evaluations of the global model, so what is asked for is
        rounded up to a multiple of those.
        """
        wanted = self.training.evaluate_personalised_every
        rounds = self.clients / self.training.replies / SHARE if isinstance(wanted, str) else wanted
        return max(1, math.ceil(rounds / self.interval)) * self.interval

    def due(self, rounds: int) -> bool:
        """Whether the global model is evaluated after so many rounds."""
        return rounds % self.interval == 0 or rounds == self.training.rounds

    def personalised_due(self, rounds: int) -> bool:
        """Whether personalised models are evaluated after so many rounds."""
        wanted = self.training.evaluate_personalised_every != "never"
        return wanted and (rounds % self.personalised_interval == 0 or rounds == self.training.rounds)

    def personalised_clients(self) -> NDArray[np.int64]:
        """The clients whose personalised models are evaluated: all, or a random sample as large as is affordable."""
        training = self.training
        affordable = max(training.cohort, int(SHARE * training.rounds * training.replies))
        if training.evaluate_personalised_every != "auto" or affordable >= self.clients:
            return np.arange(self.clients)
        drawn = stream(training.seed, Purpose.OWN_MODEL).choice(self.clients, affordable, replace=False)
        return np.sort(drawn).astype(np.int64)


@dataclass(eq=False)
class Evaluator:
    """Asks clients, through the coordinator's transport, how good the current model is."""

    coordinator: Coordinator
    schedule: EvaluationSchedule
    objective: Objective
    _last: tuple[Tensor, Tensor, Scores] | None = field(default=None, init=False)

    def evaluate(self, round_: int) -> Record:
        """What is due after a round."""
        merit, scores = self.objective.merit, self.scores(round_)
        values = scores[merit]
        known = np.isfinite(values)  # clients on other machines may be out of reach
        if not known.any():
            return {}
        objective, coordinator = self.objective, self.coordinator
        found = self._means(scores)
        found |= {"higher_is_better": objective.higher_is_better, "metric_is_share": objective.share}
        found["by_client"] = by_client(values)
        if (own := coordinator.algorithm.server_model(coordinator.server)) is not None:
            request = EvaluateRequests(round_, np.arange(self.schedule.clients), own, coordinator.buffers)
            found[f"server_{merit}"] = mean(self._collected(request)[merit][known])
        members = coordinator.members
        if not members.fixed:
            found[f"member_{merit}"] = mean(values[known & members.objective(round_)])
            arrives = members.calendar.arrives
            arrived = np.unique(arrives[known & (arrives <= round_)]).tolist()
            groups = {since: values[known & (arrives == since)] for since in arrived}
            found[f"{merit}_by_arrival"] = {str(since): mean(group) for since, group in groups.items()}
        return found | (self.evaluate_personalised(round_) if self.schedule.personalised_due(round_ + 1) else {})

    def scores(self, round_: int) -> Scores:
        """Every client's metrics of the global model, NaN if unknown; the same model is evaluated once."""
        coordinator = self.coordinator
        w, buffers = coordinator.algorithm.evaluated_model(coordinator.server), coordinator.buffers
        last = None if len(coordinator.model.personal) else self._last  # personal layers may have changed since
        if last is None or not (torch.equal(last[0], w) and torch.equal(last[1], buffers)):
            request = EvaluateRequests(round_, np.arange(self.schedule.clients), w, buffers)
            self._last = last = w.clone(), buffers.clone(), self._collected(request)
        return last[2]

    def evaluate_personalised(self, round_: int) -> Record:
        """Means, and the worst decile, of the metrics that clients' personalised models have on their own test data.

        That is a client's personalised model after another round of work, or the global one after E steps of SGD. An
        observer's view: nothing is stored or billed.
        """
        scores = self._collected(self.personalising(round_, self.schedule.personalised_clients()))
        return {f"personalised_{name}": value for name, value in self._means(scores).items() if name != "metric"}

    def personalising(self, round_: int, clients: NDArray[np.int64]) -> EvaluateRequests:
        """What clients are sent to make their personalised models after a round."""
        coordinator = self.coordinator
        algorithm, server, plain = coordinator.algorithm, coordinator.server, coordinator.plain
        settings = coordinator.settings(round_)
        how = Personalisation(settings)
        if algorithm.personalised:
            parts = algorithm.broadcast(server, settings)
            alone = {client: algorithm.broadcast_to(server, client) for client in clients.tolist()}
            how = Personalisation(
                settings,
                {name: encode(part, plain) for name, part in parts.items()},
                {client: encode(part, plain) for client, part in alone.items() if part is not None},
            )
        return EvaluateRequests(round_, clients, server.w, coordinator.buffers, how)

    def _means(self, scores: Scores) -> Record:
        """Of every metric over the clients where it is known, and the worst decile of the first; nothing of nothing."""
        known = {name: values[np.isfinite(values)] for name, values in scores.items()}
        if not len(of_merit := known[self.objective.merit]):
            return {}
        first: Record = {self.objective.merit: mean(of_merit)}
        worst = worst_decile(of_merit, higher_is_better=self.objective.higher_is_better)
        others = {name: mean(values) for name, values in known.items() if name != self.objective.merit}
        return {**first, "worst_decile": worst, **others, "metric": self.objective.merit}

    def _collected(self, requests: EvaluateRequests) -> Scores:
        transport = self.coordinator.transport
        transport.send(requests)
        metrics = transport.collect(self.coordinator.round_end).metrics
        with np.errstate(invalid="ignore", divide="ignore"):
            return {name: metrics[name][0] / metrics[name][1] for name in self.objective.metrics}


def by_client(values: Values, most: int = MOST_LISTED) -> dict[str, float]:
    """A metric of every client that has one, by its number; of very many clients, of every second, third, ….

    >>> by_client(np.array([0.5, np.nan, 0.25, 1.0]), most=2)
    {'0': 0.5, '2': 0.25}
    """
    listed = range(0, len(values), -(-len(values) // most) or 1)
    return {str(client): round(float(values[client]), 4) for client in listed if np.isfinite(values[client])}


def worst_decile(values: Sequence[float] | Values, *, higher_is_better: bool = True) -> float:
    """Mean of a metric over the worst tenth of the clients (at least one).

    >>> worst_decile([0.1] + [0.9] * 19)
    0.5
    """
    ordered = np.sort(np.asarray(values))
    worst = -(-len(ordered) // 10)
    return float((ordered[:worst] if higher_is_better else ordered[-worst:]).mean())


def mean(values: Values) -> float | None:
    """The mean, or None of nothing."""
    return float(values.mean()) if len(values) else None
