"""A run of a search, in this process or in another one: to its end, or until others were better at the same round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from efl.config import Experiment
from efl.runs.callbacks import Callback
from efl.runs.comparison import Job, prepare_directory
from efl.runs.data import DataCache
from efl.runs.directory import Record, RunDirectory
from efl.runs.loop import Run
from efl.runs.setup import Setup, build
from efl.tune.storage import Journal


@dataclass(frozen=True)
class Trial:
    """A run to be made: a trial of the search by its number or, with another ``seed``, the confirmation of one."""

    label: str
    number: int
    experiment: Experiment
    directory: Path
    journal: Journal
    merit: str  # the figure of a round by which it is judged
    seed: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What a run came to; its value is None if it diverged."""

    value: float | None
    rounds: int
    pruned: bool


class Watcher(Callback):
    """Reports every evaluation to the study, and ends the run where the study's pruner says so."""

    def __init__(self, trial: Trial) -> None:
        self.asked = trial

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """Open the study; rounds that were reported before a stop are known to it."""
        study = self.asked.journal.study()
        self.trial = self.asked.journal.trial(study, self.asked.number)
        self.reported = set(study.trials[self.asked.number].intermediate_values)

    def round(self, record: Record) -> bool:
        """Report an evaluation."""
        value, step = record.get(self.asked.merit), record["round"] + 1
        if value is None:
            return False
        if step not in self.reported:
            self.trial.report(value, step)
        return bool(self.trial.should_prune())


def make(trial: Trial, data: DataCache, workers_each: int | None = None) -> Outcome:
    """Make a run, or finish it, or take it as it is, in its directory."""
    prepare_directory(Job(trial.label, trial.experiment, trial.directory), data)
    directory = RunDirectory.open(trial.directory)
    summary = directory.read_summary()
    if summary is None:
        experiment = directory.experiment()
        if workers_each is not None and experiment.engine.workers == "auto":
            experiment = experiment.with_values(engine={"workers": workers_each})
        watchers = [Watcher(trial)] if trial.seed is None else []
        summary = Run(build(experiment, data=data), directory, watchers).execute().summary
    value = summary["bmta_local" if trial.merit.startswith("personalised_") else "bmta_global"]
    return Outcome(
        None if summary["diverged"] else value, summary["rounds"], pruned=summary["stopped"] == Watcher.__name__
    )
