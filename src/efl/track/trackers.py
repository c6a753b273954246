"""Trackers people already have open: TensorBoard, MLflow and Weights & Biases, given the figures of every round.

A tracker is an observer of a run. Where it sends things is the tracker's own business (MLFLOW_TRACKING_URI, WANDB_MODE
and so on). A run that is resumed goes on under the name it had there, which the run directory keeps; and a tracker that
fails is left alone: the run goes on without it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

from efl.config_sections import TrackSection
from efl.errors import UserError, first_line
from efl.plugins import Registry
from efl.reading import DamagedError, parse_json, read_text, readable
from efl.runs.directory import Record
from efl.runs.loop import Observer
from efl.runs.records import RENAMED
from efl.runs.setup import Setup
from efl.storage import write_atomically

log = logging.getLogger("efl")

# Old names are there under their present ones, too.
NOT_FIGURES = ("record_version", "round", "clients", "aggregated", "by_client", *RENAMED)
HOOKS = ("start", "round", "end")

TRACKERS: Registry[Callable[[Path], Observer]] = Registry(
    "tracker",
    lambda thing: thing if callable(thing) else None,
    lambda thing: isinstance(thing, type) and all(callable(getattr(thing, hook, None)) for hook in HOOKS),
)


def trackers(track: TrackSection, directory: str | os.PathLike[str] | None) -> list[Observer]:
    """Those that the [track] section asks for, for the run in ``directory``, which need not be there yet."""
    chosen = [name for name in ("tensorboard", "mlflow", "wandb") if getattr(track, name)]
    return [Forgiven(name, _make(name, directory)) for name in dict.fromkeys([*chosen, *track.trackers])]


def _make(name: str, directory: str | os.PathLike[str] | None) -> Observer:
    if directory is None:
        raise UserError(f"track.{name}: a run that is tracked needs a directory: say where, with `out`")
    try:
        return TRACKERS.get(name)(Path(directory))
    except ImportError as error:
        raise UserError(f"track.{name}: {first_line(error)}; pip install 'elastic-fl[trackers]'") from None


class Forgiven:
    """A tracker that may fail: that is said once, and the run goes on without it."""

    def __init__(self, name: str, tracker: Observer) -> None:
        self.name, self.tracker, self.lost = name, tracker, False

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """The run begins."""
        self._tell(lambda: self.tracker.start(setup, history))

    def round(self, record: Record) -> None:
        """A round is over."""
        self._tell(lambda: self.tracker.round(record))

    def end(self, summary: Record) -> None:
        """The run is over."""
        self._tell(lambda: self.tracker.end(summary))

    def _tell(self, tell: Callable[[], object]) -> None:
        if self.lost:
            return
        try:
            tell()
        except Exception as error:  # days of training are not given up for a server that does not answer
            self.lost = True
            log.warning("%s failed and is given nothing more: %s", self.name, first_line(error))


def figures(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in a record, also those of its tables, by name.

    >>> dict(figures({"round": 3, "accuracy": 0.5, "bytes": {"up": {"update": 7}}, "diverged": False}))
    {'accuracy': 0.5, 'bytes/up/update': 7.0}
    """
    for name, value in record.items():
        if name in NOT_FIGURES:
            continue
        if isinstance(value, Mapping):
            yield from figures(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(value)


def settings(setup: Setup) -> dict[str, Any]:
    """The experiment's keys, as section.key, and its lists as they are."""
    return setup.experiment.flat()


def tracker_run_id(directory: Path, tracker: str, make: Callable[[], str]) -> str:
    """A tracker's own name of the run in this directory, made when it is first needed."""
    path = directory / "trackers.json"
    names: dict[str, str] = {}
    if os.path.lexists(path):
        with readable(path, "delete it, and the run goes on under a new name there"):
            names = parse_json(read_text(path))
            if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
                raise DamagedError("not a table of names")
    if tracker not in names:
        names[tracker] = make()
        write_atomically(path, json.dumps(names).encode())
    return names[tracker]


@TRACKERS.register("tensorboard")
class TensorBoard:
    """Event files below the run directory: `tensorboard --logdir DIR`."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.directory, self.writing_to = directory / "tensorboard", SummaryWriter

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """All rounds so far are written again, in place of whatever part of them was written before."""
        self.writer = self.writing_to(str(self.directory), purge_step=0 if history else None)
        text = "".join(f"| {name} | {value} |\n" for name, value in settings(setup).items())
        self.writer.add_text("experiment", f"| key | value |\n|---|---|\n{text}")
        for record in history:
            self.round(record)

    def round(self, record: Record) -> None:
        """A point on every curve."""
        for name, value in figures(record):
            self.writer.add_scalar(name, value, record["round"] + 1)

    def end(self, summary: Record) -> None:
        """The summary as text."""
        rows = "".join(f"| {name} | {value} |\n" for name, value in figures(summary))
        self.writer.add_text("summary", f"| | |\n|---|---|\n{rows}")
        self.writer.close()


@TRACKERS.register("mlflow")
class MLflow:
    """A run of MLflow, on the server that MLFLOW_TRACKING_URI names or in local files."""

    def __init__(self, directory: Path) -> None:
        from mlflow import MlflowClient

        self.directory, self.client = directory, MlflowClient()

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """Rounds that it has already are not sent again."""
        self.run = tracker_run_id(self.directory, "mlflow", self._new_run)
        if history:
            self.client.update_run(self.run, "RUNNING")
        else:
            for name, value in settings(setup).items():
                self.client.log_param(self.run, name, value)
        known = self.client.get_metric_history(self.run, "seconds")
        self.known = max((metric.step for metric in known), default=0)
        for record in history:
            self.round(record)

    def _new_run(self) -> str:
        wanted = os.environ.get("MLFLOW_EXPERIMENT_NAME", "elastic-fl")
        found = self.client.get_experiment_by_name(wanted)
        experiment = self.client.create_experiment(wanted) if found is None else found.experiment_id
        return str(self.client.create_run(experiment, run_name=self.directory.name).info.run_id)

    def round(self, record: Record) -> None:
        """All figures in one call."""
        from mlflow.entities import Metric

        step = record["round"] + 1
        if step > self.known:
            time = int(1000 * record["seconds"])
            self.client.log_batch(self.run, [Metric(name, value, time, step) for name, value in figures(record)])

    def end(self, summary: Record) -> None:
        """The summary's figures, without a step of their own."""
        for name, value in figures(summary):
            self.client.log_metric(self.run, f"summary/{name}", value)
        self.client.set_terminated(self.run, "FAILED" if summary["diverged"] else "FINISHED")


@TRACKERS.register("wandb")
class WeightsAndBiases:
    """A run of Weights & Biases; WANDB_PROJECT, WANDB_MODE and the like are heeded."""

    def __init__(self, directory: Path) -> None:
        import wandb

        self.directory, self.library = directory, wandb

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """Rounds that it has already are not sent again."""
        self.run = self.library.init(
            project=os.environ.get("WANDB_PROJECT", "elastic-fl"),
            id=tracker_run_id(self.directory, "wandb", lambda: token_hex(4)),
            name=self.directory.name,
            resume="allow",
            config=settings(setup),
            dir=str(self.directory),
        )
        for record in history:
            self.round(record)

    def round(self, record: Record) -> None:
        """One row of its table."""
        step = record["round"] + 1
        if step >= self.run.step:
            self.run.log(dict(figures(record)), step=step)

    def end(self, summary: Record) -> None:
        """The summary as its summary."""
        self.run.summary.update(dict(figures(summary)))
        self.run.finish(exit_code=int(summary["diverged"]))
