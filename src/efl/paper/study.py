"""What Table 3 and Figures 1 to 3 share: methods on settings, tuned alike, built up piece by piece.

A setting at a time, every method is searched with the same budget of client-steps (`efl.tune`), on a part of the
training data held out for it, and what was found is run on the test data with several seeds. Every finished run is a
line in results.jsonl, every search a journal. Asked again, a study takes up what is there, so it can be stopped at any
time and made larger later; what was run with other settings is run again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from efl.config import Experiment, parse
from efl.paper.results import Cell, Results
from efl.paper.timing import Speeds, Work
from efl.runs.comparison import Job
from efl.runs.data import DataCache
from efl.runs.directory import Record, RunDirectory
from efl.settings import overrides_by_section
from efl.track.progress import run_with_progress
from efl.tune.display import search_progress
from efl.tune.search import Effort, Search
from efl.tune.space import Space, space_of
from efl.tune.tuner import tune

Tables = Mapping[str, Mapping[str, Any]]
NO_SEARCH = Effort(trials=1)


@dataclass(frozen=True)
class Method:
    """A row of a table, or a curve.

    Attributes:
        name: What it is called there.
        algorithm: Its name, or name:preset.
        settings: Hyper-parameters.
        space: What is searched, by key of the experiment; None for what the algorithm declares.
        gradients: How many it takes in a local step.
        all_clients: Whether all clients take part in a round, of which there are as many fewer.
    """

    name: str
    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    space: Space | None = None
    gradients: int = 1
    all_clients: bool = False


@dataclass(frozen=True)
class Setting:
    """A column of a table, or a panel: data, network, training and fleet, as sections of an experiment."""

    name: str
    tables: Tables

    def changed(self, overrides: Sequence[str]) -> Setting:
        """With some keys set, each as ``section.key=value``."""
        said = overrides_by_section(overrides)
        return replace(self, tables={**self.tables, **{s: {**self.tables.get(s, {}), **said[s]} for s in said}})


@dataclass(frozen=True)
class Study:
    """Methods × settings × seeds; each search has ``effort``, with at most half the rounds of a test run."""

    name: str
    settings: Sequence[Setting]
    methods: Sequence[Method]
    seeds: int = 1
    effort: Effort = NO_SEARCH

    def experiment(self, setting: Setting, method: Method, seed: int = 0) -> Experiment:
        """A run on test data, before anything is tuned."""
        tables = {name: dict(table) for name, table in setting.tables.items()}
        training = tables["training"] = {**tables.get("training", {}), "seed": seed}
        if method.all_clients:
            clients = tables["federation"]["clients"]
            rounds = max(1, training["rounds"] * training["cohort"] // clients)
            often = {key: max(1, training[key] * rounds // training["rounds"]) for key in training if _is_interval(key)}
            training |= {"rounds": rounds, "cohort": clients, **often}
        tables["algorithm"] = {"name": method.algorithm, **method.settings}
        return parse(tables)


def _is_interval(key: str) -> bool:
    return key in ("evaluate_every", "evaluate_personalised_every")


def run(
    study: Study,
    out: Path,
    workers: int | None = None,
    *,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Results:
    """Tune, then test, setting by setting, making only the runs that are not there yet, ``workers`` at a time.

    Args:
        study: What to run.
        out: Where results.jsonl and searches are.
        workers: How many runs are made at a time.
        quiet: Whether progress is shown.
        say: Called at the start with a line for each setting that is not finished: how long it will take.
    """
    out.mkdir(parents=True, exist_ok=True)
    results, speeds, data = Results(out / "results.jsonl"), Speeds(out / "speed.json"), DataCache()
    columns = [Column(study, setting, results, out, data) for setting in study.settings]
    for column in columns:
        if (left := column.work_left()).steps:
            plain = study.experiment(column.setting, Method("FedAvg", "fedavg"))
            say(f"{column.setting.name}: {left.said(speeds.measured(plain, data), workers)}")
    for column in columns:
        column.run(workers, quiet=quiet)
    return results


class Column:
    """All methods on one setting: their searches, and their runs on test data."""

    def __init__(self, study: Study, setting: Setting, results: Results, out: Path, data: DataCache) -> None:
        self.study, self.setting, self.results, self.out = study, setting, results, out
        self.searches = {method.name: self._search(method, data) for method in study.methods}

    def _search(self, method: Method, data: DataCache) -> Search | None:
        """The search for a method; None where there is nothing to choose."""
        experiment, effort = self.study.experiment(self.setting, method), self.study.effort
        space = space_of(method.algorithm, experiment) if method.space is None else method.space
        if not space or effort.trials < 2:
            return None
        most = -(-experiment.training.rounds // 2)
        effort = replace(effort, rounds=min(effort.rounds or most, most))
        return Search(f"{self.setting.name} {method.name}", experiment, space, effort, self.out, data)

    def work_left(self) -> Work:
        """What is still to be done."""
        work = Work()
        for method in self.study.methods:
            search = self.searches[method.name]
            rounds = 0 if search is None else search.rounds_left()
            if search is not None and rounds:
                work = work.searching(rounds, rounds / search.rounds, search.experiment, method.gradients)
            for cell, experiment in self._cells(method).items():
                if rounds or not self.results.has(cell, experiment):
                    work = work.testing(experiment, method.gradients)
        return work

    def _cells(self, method: Method) -> dict[Cell, Experiment]:
        """The runs on test data, with what was found so far."""
        search = self.searches[method.name]
        found = self.study.experiment(self.setting, method) if search is None else search.found().experiment
        return {
            Cell(self.setting.name, method.name, 0, False, seed): found.with_values(training={"seed": seed})
            for seed in range(self.study.seeds)
        }

    def run(self, workers: int | None, *, quiet: bool = False) -> None:
        """Make the runs that are missing."""
        searches = [search for search in self.searches.values() if search is not None and search.rounds_left()]
        if searches:
            with search_progress(Console(highlight=False), searches, quiet=quiet) as note:
                tune(searches, workers, note)
        jobs: dict[Path, tuple[Cell, Job]] = {}
        for method in self.study.methods:
            for cell, experiment in self._cells(method).items():
                name = f"{cell.setting}-{cell.method}-{cell.seed}"
                directory = self.out / "runs" / "".join(sign for sign in name if sign.isalnum() or sign in "-.")
                if not self.results.has(cell, experiment):
                    jobs[directory] = cell, Job(cell.label, experiment, directory)
                elif directory.exists():  # killed before it was deleted
                    shutil.rmtree(directory)

        def done(job: Job, summary: Record) -> None:
            self.results.add(jobs[job.directory][0], job.experiment, RunDirectory.open(job.directory), summary)
            shutil.rmtree(job.directory)

        if jobs:
            run_with_progress([job for _, job in jobs.values()], workers, done, quiet=quiet)
