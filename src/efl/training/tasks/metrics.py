"""Metrics: what is reported of a model on a client's test data, as a sum and the weight to divide it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from efl.errors import UserError
from efl.models.outputs import tensor_of
from efl.plugins import Registry
from efl.training.tasks.base import Pairs, Task
from efl.training.tasks.classification import Classification
from efl.training.tasks.elementwise import aligned


@dataclass(frozen=True, eq=False)
class Metric:
    """A function of a client's outputs and targets, all of its test data at once.

    It returns one number, a number per sample, or a sum and its weight.

    Attributes:
        function: Called with outputs and targets; with the task before them if ``per_sample``.
        higher_is_better: Otherwise lower is.
        share: Whether it lies between 0 and 1 and is shown in percent.
        per_sample: It returns sums and weights of every sample (B,), and may be called with any of them.

    >>> Metric(lambda outputs, targets: (outputs - targets).abs(), higher_is_better=False).total(
    ...     Task(), torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]))
    (3.0, 2.0)
    """

    function: Callable[..., Any]
    higher_is_better: bool = True
    share: bool = False
    per_sample: bool = False

    def total(self, task: Task, outputs: Any, targets: Tensor) -> tuple[float, float]:
        """The sum and weight of a client."""
        if self.per_sample:
            sums, weights = self.function(task, outputs, targets)
            return float(sums.double().sum()), float(weights.double().sum())
        found = self.function(outputs, targets)
        try:
            if isinstance(found, tuple | list) and len(found) == 2:
                return float(found[0]), float(found[1])
            values = torch.as_tensor(found, dtype=torch.float64).reshape(-1)
        except (TypeError, ValueError, RuntimeError):
            what = type(found).__name__
            raise ValueError(f"it returns a {what}; return a number, one per sample, or a sum and its weight") from None
        if len(values) not in (1, len(targets)):
            raise ValueError(f"it returns {len(values)} numbers; return one, or one per sample")
        return float(values.mean()) * len(targets), float(len(targets))


def as_metric(thing: Any) -> Metric | None:
    """A metric from a function, a `Metric`, or an object of torchmetrics; None of anything else."""
    if isinstance(thing, Metric):
        return thing
    better = getattr(thing, "higher_is_better", None)
    if all(callable(getattr(thing, name, None)) for name in ("reset", "update", "compute")):
        return Metric(_computed(thing), better is not False)
    return Metric(thing, better is not False) if callable(thing) else None


def _computed(metric: Any) -> Callable[[Any, Tensor], Any]:
    """What an object of torchmetrics computes of one client; it forgets the client before."""

    def compute(outputs: Any, targets: Tensor) -> Any:
        metric.reset()
        metric.update(tensor_of(outputs), targets)
        return metric.compute()

    return compute


TOP = 5
METRICS: Registry[Metric] = Registry("metric", as_metric, lambda thing: isinstance(thing, Metric))


def _losses(task: Task, outputs: Any, targets: Tensor) -> Pairs:
    losses, weights = task.sample_losses(outputs, targets).double(), task.sample_weights(targets)
    weights = torch.ones_like(losses) if weights is None else weights.double()
    return losses * weights, weights


def _accuracy(task: Task, outputs: Tensor, targets: Tensor) -> Pairs:
    return task.correct(outputs, targets)


def _top5(task: Task, outputs: Tensor, targets: Tensor) -> Pairs:
    if not isinstance(task, Classification):
        raise UserError("top5 needs classes; name other metrics")
    if outputs.shape[-1] <= TOP:
        raise UserError(f"of {outputs.shape[-1]} classes the label is always among the best {TOP}; take accuracy")
    return task.among(TOP, outputs, targets)


def _squared(task: Task, outputs: Tensor, targets: Tensor) -> Pairs:
    return _means(_differences(outputs, targets).square())


def _absolute(task: Task, outputs: Tensor, targets: Tensor) -> Pairs:
    return _means(_differences(outputs, targets).abs())


def _f1(task: Task, outputs: Tensor, targets: Tensor) -> Pairs:
    """2TP / (2TP + FP + FN) over all labels of all samples."""
    outputs, targets = aligned(tensor_of(outputs), targets)
    found, there = (outputs > 0).reshape(len(targets), -1), (targets > 0.5).reshape(len(targets), -1)
    hits = 2.0 * (found & there).double().sum(1)
    return hits, hits + (found ^ there).double().sum(1)


def _determination(outputs: Tensor, targets: Tensor) -> Tensor:
    """R²: the share of the targets' variance that is explained, on a client's own data; NaN if they have none."""
    outputs, targets = aligned(tensor_of(outputs), targets)
    if bool((targets == targets[:1]).all()):
        return torch.tensor(torch.nan)
    total = (targets - targets.mean(0)).double().square().sum()
    return 1 - (outputs - targets).double().square().sum() / total


def _differences(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs, targets = aligned(tensor_of(outputs), targets)
    if outputs.shape != targets.shape:
        raise UserError(f"outputs {tuple(outputs.shape)} cannot be subtracted from targets {tuple(targets.shape)}")
    return (outputs - targets).double()


def _means(values: Tensor) -> Pairs:
    means = values.reshape(len(values), -1).mean(1)
    return means, torch.ones_like(means)


METRICS.register("accuracy", Metric(_accuracy, share=True, per_sample=True))
METRICS.register("top5", Metric(_top5, share=True, per_sample=True))
METRICS.register("f1", Metric(_f1, share=True, per_sample=True))
METRICS.register("loss", Metric(_losses, higher_is_better=False, per_sample=True))
METRICS.register("mse", Metric(_squared, higher_is_better=False, per_sample=True))
METRICS.register("mae", Metric(_absolute, higher_is_better=False, per_sample=True))
METRICS.register("r2", Metric(_determination))
