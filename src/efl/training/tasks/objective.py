"""A task and what is measured of it, from names, or from the user's own functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.errors import UserError, first_line
from efl.settings import make
from efl.training.tasks.base import Task
from efl.training.tasks.classification import Classification
from efl.training.tasks.metrics import METRICS, Metric, as_metric
from efl.training.tasks.own import OwnLoss
from efl.training.tasks.registry import TASKS

Loss = str | Mapping[str, Any] | Task | Callable[[Any, Tensor], Tensor]
Metrics = str | Iterable[str] | Mapping[str, Any]
AUTO = "auto"
# Figures of a round that a metric must not be mistaken for.
TAKEN = frozenset(
    {"round", "eta", "sampled", "complete", "partial", "dropped", "clients", "aggregated", "membership", "rejected"}
    | {"train_loss", "bytes_up", "bytes_down", "bytes", "simulated_seconds", "seconds", "metric", "worst_decile"}
)


@dataclass(frozen=True, eq=False)
class Objective:
    """What clients minimise, and what is reported; the first metric is the figure of merit.

    >>> objective = Objective.of("mse", ["mae"])
    >>> objective.merit, objective.higher_is_better
    ('mae', False)
    """

    task: Task
    metrics: Mapping[str, Metric]

    @classmethod
    def of(cls, loss: Loss = AUTO, metrics: Metrics = (), y: Tensor | None = None) -> Objective:
        """The objective by names or objects, for the targets ``y``.

        Args:
            loss: The name of a task, a table with its name and settings, a `Task`, or a function of outputs and
                targets. ``auto`` is ``mse`` for real-valued targets, else ``cross_entropy``.
            metrics: Names, or functions by name; without any, those of the task.
            y: The targets; the task is fitted to them.

        Raises:
            UserError: If something named does not exist, or is no loss or metric.
        """
        task = _task(loss, y)
        found = _metrics(metrics or task.default_metrics)
        if wrong := next((name for name in found if not name.isidentifier() or name in TAKEN), None):
            raise UserError(f"{wrong!r} cannot be the name of a metric; choose another")
        return cls(task if y is None else task.fitted(y), found)

    @property
    def merit(self) -> str:
        """The name of the figure of merit."""
        return next(iter(self.metrics))

    @property
    def higher_is_better(self) -> bool:
        """Its direction."""
        return self.metrics[self.merit].higher_is_better

    @property
    def share(self) -> bool:
        """Whether it is shown in percent."""
        return self.metrics[self.merit].share

    @property
    def per_sample(self) -> bool:
        """Whether all metrics are sums over samples."""
        return all(metric.per_sample for metric in self.metrics.values())

    @property
    def plain(self) -> bool:
        """Whether all there is to measure is whether predicted classes are right."""
        return self.task.plain and list(self.metrics.values()) == [METRICS.get("accuracy")]

    def of_samples(self, outputs: Any, targets: Tensor) -> NDArray[np.float64]:
        """Sums and weights of every metric for every sample, (S, metrics, 2)."""
        pairs = [torch.stack(m.function(self.task, outputs, targets), -1).double() for m in self.metrics.values()]
        return torch.stack(pairs, 1).numpy()

    def of_client(self, outputs: Any, targets: Tensor, client: int) -> NDArray[np.float64]:
        """Sums and weights of every metric for all test data of a client, (metrics, 2).

        Raises:
            UserError: If a metric fails. One that is NaN is unknown of this client, and not in the mean.
        """
        found: list[tuple[float, float]] = []
        for name, metric in self.metrics.items():
            try:
                total, weight = metric.total(self.task, outputs, targets)
            except Exception as error:  # whatever the user's own function does
                raise UserError(f"metric {name!r} fails on client {client}: {first_line(error)}") from None
            known = bool(np.isfinite([total, weight]).all()) and weight >= 0
            found.append((total, weight) if known else (0.0, 0.0))  # a client that knows nothing of it
        return np.array(found)


def _task(loss: Loss, y: Tensor | None) -> Task:
    if isinstance(loss, Task):
        return loss
    if isinstance(loss, Mapping):
        settings = dict(loss)
        name = str(settings.pop("name", AUTO))
    elif isinstance(loss, str):
        name, settings = loss, {}
    elif isinstance(loss, type):
        raise UserError(f"loss: {loss.__name__} is a class; pass an object of it, such as {loss.__name__}()")
    elif callable(loss):
        return OwnLoss(loss)
    else:
        raise UserError(f"loss: a {type(loss).__name__} is no loss; write its name or a function of outputs, targets")
    if name == AUTO:
        name = "mse" if y is not None and y.is_floating_point() else "cross_entropy"
    task = make(TASKS.get(name), settings, "training.loss")
    assert isinstance(task, Task)
    return task


def _metrics(metrics: Metrics) -> dict[str, Metric]:
    if isinstance(metrics, str):
        metrics = [metrics]
    if not hasattr(metrics, "items") and not isinstance(metrics, list | tuple):
        raise UserError("metrics: write a list of names, or functions by name: metrics={'error': error}")
    pairs = list(metrics.items()) if hasattr(metrics, "items") else [(name, name) for name in metrics]
    if nameless := [thing for name, thing in pairs if not isinstance(name, str)]:
        name = getattr(nameless[0], "__name__", type(nameless[0]).__name__)
        name = name.lower() if name.isidentifier() else "mine"
        raise UserError(f"metrics: a list is of names; give a function or object its own: metrics={{'{name}': …}}")
    found: dict[str, Metric] = {}
    for name, thing in pairs:
        metric = METRICS.get(thing) if isinstance(thing, str) else as_metric(thing)
        if metric is None:
            raise UserError(f"metric {name!r} is a {type(thing).__name__}; pass a function of outputs and targets")
        found[str(name)] = metric
    return found


PLAIN_TASK = Classification()
