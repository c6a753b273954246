"""What a user calls: `train`, `run`, `resume`, `load_model`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from efl.algorithms import Algorithm
from efl.config import CUSTOM, Experiment, parse
from efl.federation import Federation
from efl.fleet import Fleet
from efl.runs.arguments import check_kinds, checked_callbacks
from efl.runs.directory import RunDirectory
from efl.runs.learning import NAMED, Learning
from efl.runs.loop import Observer, Run
from efl.runs.model_files import read_model
from efl.runs.result import Result, warns_if_diverged
from efl.runs.setup import LocalSetup, build
from efl.track.trackers import trackers
from efl.training.optimisers import OptimiserLike
from efl.training.tasks.objective import Loss, Metrics
from efl.transport.torchrun import LEADER, rank


@warns_if_diverged
def train(
    federation: Federation | str = "digits",
    model: nn.Module | str = "auto",
    algorithm: Algorithm | str = "efl",
    fleet: Fleet | None = None,
    *,
    trainable: Sequence[str] = (),
    personal: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Observer] = (),
    progress: bool = False,
    track: str | Sequence[str] | Mapping[str, Any] = (),
    engine: Mapping[str, Any] | None = None,
    plugins: Sequence[str | os.PathLike[str]] = (),
    loss: Loss | None = None,
    metrics: Metrics | None = None,
    optimiser: OptimiserLike | None = None,
    **training: Any,
) -> Result:
    """Train a model on a federation of simulated clients.

    Args:
        federation: A `Federation`, or the name of a data set, dealt out to 50 clients; see `efl.load` for other ways.
        model: Any ``nn.Module``, or a network's name; ``auto`` is what suits the data set.
        algorithm: An algorithm with its hyper-parameters, or a name.
        fleet: How clients are irregular; by default they are not.
        trainable: Patterns of the parameters to train, such as ``head`` or ``*lora_*``; by default those that require
            a gradient. What is not trained is not sent.
        personal: Patterns of the parameters and buffers that stay with each client.
        out: A new directory for the run's files, from which it can be resumed; by default there are none.
        callbacks: Called at the run's start, after every round and at its end, such as `efl.EarlyStopping`; `Callback`
            is the base class of your own.
        progress: Show how far the run is: a bar in a notebook or on a terminal, lines otherwise.
        track: Trackers by name, such as ``"tensorboard"``; or the keys of an experiment's [track] section.
        engine: Keys of an experiment's [engine] section, such as ``{"workers": 1, "device": "cuda"}``.
        plugins: Python files to import first, whose `efl.register` calls make names known.
        loss: The name of a loss, a function of outputs and targets, or a `Task` (docs/tasks.md).
        metrics: Names of metrics, or functions by name; the first is the figure of merit.
        optimiser: A name, such as ``adamw``, an object such as ``efl.SGD(momentum=0.9)``, or a ``torch.optim`` class.
        **training: Keys of an experiment's [training] section, such as ``rounds``, ``cohort``, ``learning_rate``.

    Returns:
        The summary, a record per round, the trained module and the directory. Under torchrun rank 0 has them; on the
        other ranks ``summary`` and ``history`` are empty.

    Raises:
        UserError: If something named does not exist or does not fit; before anything is trained or written.

    >>> result = train("digits", algorithm="fedavg", rounds=2, cohort=5)
    >>> result.summary["rounds"], result.summary["diverged"]
    (2, False)
    """
    check_kinds(federation, model, fleet)
    table: dict[str, Any] = {"training": training, "engine": engine or {}, "track": _track(track)}
    table["model"] = {"trainable": trainable, "personal": personal}
    named = isinstance(federation, str)
    table["federation"] = {"dataset": federation} if named else {"dataset": CUSTOM, "clients": len(federation)}
    if isinstance(model, str):
        table["model"]["name"] = model
    if isinstance(algorithm, str):
        table["algorithm"] = {"name": algorithm}
    return run(
        parse(table).with_plugins(plugins),
        out,
        callbacks,
        progress=progress,
        federation=None if isinstance(federation, str) else federation,
        module=None if isinstance(model, str) else model,
        algorithm=None if isinstance(algorithm, str) else algorithm,
        fleet=fleet,
        learning=Learning(loss, metrics, optimiser),
    )


def run(
    experiment: Experiment,
    out: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Observer] = (),
    *,
    progress: bool = False,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    fleet: Fleet | None = None,
    learning: Learning = NAMED,
) -> Result:
    """Run an experiment.

    Args:
        experiment: What to run; see `efl.load_experiment`.
        out: A new directory for the run's files; by default there are none.
        callbacks: Called at the run's start, after every round and at its end.
        progress: Show how far the run is.
        federation: Takes the place of the data that the experiment names.
        module: Takes the place of its network.
        algorithm: Takes the place of its algorithm and transformations.
        fleet: Takes the place of its fleet.
        learning: Takes the place of its loss, metrics and optimiser.

    Returns:
        The summary, a record per round, the trained module and the directory, as `train` does.

    Raises:
        UserError: If something named does not exist or does not fit, or ``out`` already holds something.

    >>> run(Experiment().with_values(training={"rounds": 1})).summary["algorithm"]
    'efl'
    """
    check_kinds(federation, module, fleet)
    watching = checked_callbacks(callbacks)
    setup = build(experiment, federation, module, algorithm, fleet, learning=learning)
    if rank() != LEADER:
        return _served(setup)
    tracked = trackers(setup.experiment.track, out)
    directory = None if out is None else RunDirectory.create(out, setup.experiment)
    return Run(setup, directory, [*_displays(progress), *watching, *tracked]).execute()


def resume(
    directory: str | os.PathLike[str],
    callbacks: Sequence[Observer] = (),
    *,
    progress: bool = False,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    fleet: Fleet | None = None,
    plugins: Sequence[str | os.PathLike[str]] = (),
    loss: Loss | None = None,
    metrics: Metrics | None = None,
    optimiser: OptimiserLike | None = None,
) -> Result:
    """Resume a run that was stopped, at any moment, by whatever means; the result is that of a run never stopped.

    Args:
        directory: The run directory.
        callbacks: Called at the start with the rounds so far, after every further round and at the end; those that may
            stop the run must be passed again.
        progress: Show how far the run is.
        federation: The federation the run was started with, if that was an object.
        model: The same for the module.
        algorithm: The same for the algorithm.
        fleet: The same for the fleet.
        plugins: Python files to import in place of those that the run recorded, if they have moved.
        loss: The same for the loss, if that was a function.
        metrics: The same for the metrics.
        optimiser: The same for the optimiser.

    Returns:
        What the run would have returned.

    Raises:
        UserError: If the directory holds no run, is damaged or in use, or an object is missing or another one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = train(rounds=1, out=f"{folder}/run")
    ...     resume(f"{folder}/run").summary["model_sha256"] == first.summary["model_sha256"]
    True
    """
    check_kinds(federation, model, fleet)
    watching = checked_callbacks(callbacks)
    where = RunDirectory.open(directory)
    experiment = where.experiment()
    if plugins:
        experiment = experiment.with_plugins(plugins)
    learning = Learning(loss, metrics, optimiser)
    setup = build(experiment, federation, model, algorithm, fleet, learning=learning)
    if rank() != LEADER:
        return _served(setup)
    tracked = trackers(setup.experiment.track, where.path)
    return Run(setup, where, [*_displays(progress), *watching, *tracked]).execute()


def load_model(path: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """The trained model of a run, from its directory.

    Args:
        path: A run directory, or a file of weights such as a `BestCheckpoint` writes.
        model: A module of the same kind, where the run trained one of your own; its weights are replaced in a copy.

    Returns:
        The module, in evaluation mode.

    Raises:
        UserError: If there is no model, or it is not one of this kind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trained = train(rounds=1, cohort=3, local_steps=1, out=f"{folder}/run").model
    ...     read = load_model(f"{folder}/run")
    >>> bool((read[1].weight == trained[1].weight).all())
    True
    """
    return read_model(Path(path), model)


def _track(track: str | Sequence[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """The [track] section that an argument stands for."""
    if isinstance(track, Mapping):
        return track
    return {"trackers": [track] if isinstance(track, str) else list(track)}


def _displays(progress: bool) -> list[Observer]:
    if not progress:
        return []
    from efl.track.progress import progress_display

    return [progress_display()]


def _served(setup: LocalSetup) -> Result:
    """Under torchrun, only rank 0 leads a run; work for it until it is over. What comes back is empty."""
    setup.follow()
    return Result({}, [], setup.model.module, None)
