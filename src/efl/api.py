"""What a user calls: `train`, `compare`, `resume`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import nn

from efl.algorithms import Algorithm
from efl.config import CUSTOM, Experiment, parse
from efl.federation import Federation
from efl.fleet import Fleet
from efl.runs.directory import RunDirectory
from efl.runs.loop import Observer, Result, Run
from efl.runs.setup import LocalSetup, build
from efl.track.trackers import trackers
from efl.transport.torchrun import LEADER, rank


def train(
    federation: Federation | str = "digits",
    model: nn.Module | str = "auto",
    algorithm: Algorithm | str = "efl",
    fleet: Fleet | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    observers: Sequence[Observer] = (),
    plugins: Sequence[str | os.PathLike[str]] = (),
    **training: Any,
) -> Result:
    """Train a model on a federation.

    Names or objects: a data set's name or a `Federation`, a network's name or any `nn.Module`, an algorithm's name
    or an instance with its hyper-parameters. ``training`` takes the keys of an experiment's [training] section. With
    ``out``, the run leaves its files there and can be resumed.

    >>> result = train("digits", algorithm="fedavg", rounds=2, cohort=5)
    >>> result.summary["rounds"], result.summary["diverged"]
    (2, False)
    """
    table: dict[str, Any] = {"training": training}
    if isinstance(federation, str):
        table["federation"] = {"dataset": federation}
    else:
        table["federation"] = {"dataset": CUSTOM, "clients": len(federation)}
    if isinstance(model, str):
        table["model"] = {"name": model}
    if isinstance(algorithm, str):
        table["algorithm"] = {"name": algorithm}
    return run(
        parse(table).with_plugins(plugins),
        out,
        observers,
        federation=None if isinstance(federation, str) else federation,
        module=None if isinstance(model, str) else model,
        algorithm=None if isinstance(algorithm, str) else algorithm,
        fleet=fleet,
    )


def run(
    experiment: Experiment,
    out: str | os.PathLike[str] | None = None,
    observers: Sequence[Observer] = (),
    *,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    fleet: Fleet | None = None,
) -> Result:
    """Run an experiment, leaving its files in ``out``; the user's own objects take the place of what it names."""
    setup = build(experiment, federation, module, algorithm, fleet)
    if rank() != LEADER:
        return _served(setup)
    tracked = trackers(setup.experiment.track, out)
    directory = None if out is None else RunDirectory.create(out, setup.experiment)
    return Run(setup, directory, [*observers, *tracked]).execute()


def resume(
    directory: str | os.PathLike[str],
    observers: Sequence[Observer] = (),
    *,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    fleet: Fleet | None = None,
    plugins: Sequence[str | os.PathLike[str]] = (),
) -> Result:
    """Go on with a run that was stopped, at any moment, by whatever means.

    The result is that of a run never stopped. Objects of the user's own that the run was started with must be passed
    again.
    """
    where = RunDirectory.open(directory)
    experiment = where.experiment()
    if plugins:
        experiment = experiment.with_plugins(plugins)
    setup = build(experiment, federation, model, algorithm, fleet)
    if rank() != LEADER:
        return _served(setup)
    return Run(setup, where, [*observers, *trackers(setup.experiment.track, where.path)]).execute()


def _served(setup: LocalSetup) -> Result:
    """Under torchrun, only rank 0 leads a run; work for it until it is over. What comes back is empty."""
    setup.follow()
    return Result({}, [], setup.model.module, None)
