"""Checks before a run: whether model, data, loss and metrics fit each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from efl.algorithms import Algorithm
from efl.algorithms.fitting import privacy_of
from efl.errors import UserError, first_line
from efl.federation import Federation
from efl.federation.lazy import LazyTensor, known
from efl.models import FlatModel
from efl.rng import seeded_torch
from efl.training.augmentation import check_augment
from efl.training.backends.selection import Eager
from efl.training.inputs import each
from efl.training.tasks import Objective
from efl.training.tasks.own import OwnLossError
from efl.training.trainer import Trainer

FIRST = 0  # the client whose first mini-batch is tried
MEASURED = 2000  # test samples on which metrics are tried, about


def check_algorithm(algorithm: Any) -> None:
    """Raise `UserError` unless it is an algorithm, with its hyper-parameters."""
    if isinstance(algorithm, type):
        name = algorithm.__name__
        raise UserError(f"algorithm: {name} is a class; pass an object of it, such as {name}()")
    if not isinstance(algorithm, Algorithm):
        raise UserError(f"algorithm: a {type(algorithm).__name__} is none; write a name, or efl.EFL()")


def check_fit(
    model: FlatModel, federation: Federation, batch_size: int, objective: Objective, algorithm: Algorithm
) -> None:
    """Raise `UserError` if the model cannot be trained on the data, or what comes of it cannot be measured."""
    check_targets(federation, objective)
    check_private(model, algorithm)
    check_augment(federation, batch_size)
    if getattr(algorithm, "fisher", None) == "true" and not objective.task.has_likelihood:
        raise UserError("algorithm.fisher = 'true' draws targets from the model; with a loss of your own use 'running'")
    samples = federation.train[FIRST]
    x, y = federation.batch(torch.from_numpy(samples[np.arange(batch_size) % len(samples)]))
    try:
        outputs = objective.task.read(model.answers(model.w, model.buffers, x))
        problem = objective.task.misfit(outputs, y, federation.classes)
        if problem is None:
            _check_loss(objective.task.loss(outputs, y))
            with seeded_torch(0):
                alone = each(lambda tensor: tensor[None].to(model.device), x)
                Eager(model, task=objective.task).rows(model.w, 1).gradient(1, alone, y[None].to(model.device))
    except UserError:
        raise
    except OwnLossError as error:
        raise UserError(f"{error} (on the first batch of client {FIRST})") from None
    except Exception as error:  # whatever the user's model does
        if "does not require grad" in str(error):
            raise UserError(
                "the loss has no gradient; compute it from the model's outputs, and detach neither"
            ) from None
        shape = (batch_size, *federation.input_shape)
        raise UserError(f"the model cannot be trained on batches of shape {shape}: {first_line(error)}") from None
    if problem is not None:
        raise UserError(problem)
    objective.of_client(outputs, y, FIRST)
    _check_metrics(model, federation, objective)


def check_private(model: FlatModel, algorithm: Algorithm) -> None:
    """Raise `UserError` if with privacy something of the model would be averaged without noise."""
    if privacy_of(algorithm) is not None and model.buffers.numel():
        raise UserError("privacy: the statistics of BatchNorm would be averaged without noise; use GroupNorm")


def _check_metrics(model: FlatModel, federation: Federation, objective: Objective) -> None:
    """Raise `UserError` if a metric fails on a client's test data; of many clients, the first are tried."""
    if objective.per_sample:
        return  # what works on a few samples works on all
    trainer = Trainer(Eager(model, task=objective.task), federation, seed=0, metrics=objective.metrics)
    samples = 0
    for client, test in enumerate(federation.test):
        if (samples := samples + len(test)) > MEASURED and client:
            return
        trainer.measure_client(model.w, model.buffers, client)


def check_targets(federation: Federation, objective: Objective) -> None:
    """Raise `UserError` naming the first client with targets that the task cannot use."""
    found = objective.task.bad_target(known(federation.y), federation.classes)
    if found is None:
        return
    sample, problem = found
    if isinstance(federation.y, LazyTensor):  # the first of a dataset
        sample = int(federation.y.items.starts[sample])
    for client, (train, test) in enumerate(zip(federation.train, federation.test, strict=True)):
        if sample in train or sample in test:
            raise UserError(f"client {client} has {problem}")
    raise UserError(f"the data have {problem}")


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise UserError(f"the loss returns a {type(loss).__name__}; return a tensor that can be differentiated")
    if loss.numel() != 1:
        raise UserError(f"the loss returns a tensor of shape {tuple(loss.shape)}; return one number, such as its mean")
    if not bool(torch.isfinite(loss).all()):
        raise UserError(f"the loss is {float(loss)} on the first batch of client {FIRST}; check loss, data and model")
