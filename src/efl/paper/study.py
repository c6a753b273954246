"""What Table 3 and Figures 1 to 3 share: methods on settings, tuned alike, built up piece by piece.

Every method has the same number of tuning runs on each setting: candidates (a learning rate, or a setting of its own)
are tried on a part of the training data held out for it, and the best is run on the test data with several seeds.
Every finished run is a line in results.jsonl. Asked again, a study takes up what is there, so it can be stopped at any
time and made larger later; what was run with other settings is run again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from efl.algorithms import create
from efl.config import Experiment, parse
from efl.paper.results import Cell, Results
from efl.runs.comparison import Job
from efl.runs.directory import Record, RunDirectory
from efl.track.progress import run_with_progress

Tables = Mapping[str, Mapping[str, Any]]
TUNING_SEED = 1000  # none of the seeds that are reported


@dataclass(frozen=True)
class Candidate:
    """Something to try: a multiple of the setting's learning rate, and settings of the algorithm."""

    rate: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)


RATES = (Candidate(1.0), Candidate(0.3), Candidate(3.0))


@dataclass(frozen=True)
class Method:
    """A row of a table, or a curve."""

    name: str
    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    candidates: Sequence[Candidate] = RATES

    @property
    def personal(self) -> bool:
        """Whether its clients have models of their own, by which it is judged."""
        return create(self.algorithm).personalised

    @property
    def merit(self) -> str:
        """What is greatest for the best candidate."""
        return "bmta_local" if self.personal else "bmta_global"


@dataclass(frozen=True)
class Setting:
    """A column of a table, or a panel: data, network, training and fleet, as sections of an experiment."""

    name: str
    tables: Tables


@dataclass(frozen=True)
class Study:
    """Methods × settings × seeds; ``tries`` candidates are run for ``tuning_rounds`` rounds.

    Tuning never takes more than half the rounds of a test run.
    """

    name: str
    settings: Sequence[Setting]
    methods: Sequence[Method]
    seeds: int = 1
    tries: int = 3
    tuning_rounds: int = 30


def run(study: Study, out: Path, workers: int | None = None, *, quiet: bool = False) -> Results:
    """Tune, then test, making only the runs that are not there yet, ``workers`` of them at a time."""
    out.mkdir(parents=True, exist_ok=True)
    results = Results(out / "results.jsonl")
    methods = {method.name: method for method in study.methods}
    tuning = [
        Cell(setting.name, method.name, number, True, TUNING_SEED)
        for setting in study.settings
        for method in study.methods
        for number in range(min(study.tries, len(method.candidates)))
        if min(study.tries, len(method.candidates)) > 1  # else there is nothing to choose
    ]
    _run(study, tuning, results, out, workers, quiet)
    tests = [
        Cell(setting.name, method, results.best(setting.name, method, methods[method].merit), False, seed)
        for seed in range(study.seeds)
        for setting in study.settings
        for method in methods
    ]
    _run(study, tests, results, out, workers, quiet)
    return results


def _run(study: Study, cells: Sequence[Cell], results: Results, out: Path, workers: int | None, quiet: bool) -> None:
    jobs: dict[Path, tuple[Cell, Job]] = {}
    for cell in cells:
        experiment = _experiment(study, cell)
        if results.has(cell, experiment):
            continue
        name = "-".join(str(value) for value in vars(cell).values())
        directory = out / "runs" / "".join(sign for sign in name if sign.isalnum() or sign in "-.")
        jobs[directory] = cell, Job(cell.label, experiment, directory)

    def done(job: Job, summary: Record) -> None:
        results.add(jobs[job.directory][0], job.experiment, RunDirectory.open(job.directory), summary)
        shutil.rmtree(job.directory)

    if jobs:
        run_with_progress([job for _, job in jobs.values()], workers, done, quiet=quiet)


def _experiment(study: Study, cell: Cell) -> Experiment:
    setting = next(setting for setting in study.settings if setting.name == cell.setting)
    method = next(method for method in study.methods if method.name == cell.method)
    candidate = method.candidates[cell.candidate]
    tables = {name: dict(table) for name, table in setting.tables.items()}
    training = tables.setdefault("training", {})
    training |= {"seed": cell.seed, "learning_rate": training["learning_rate"] * candidate.rate}
    if cell.tuning:
        rounds = min(study.tuning_rounds, -(-training["rounds"] // 2))
        training |= {"rounds": rounds, "evaluate_personalised_every": rounds if method.personal else "never"}
        tables["federation"]["evaluate_on"] = "validation"
    tables["algorithm"] = {"name": method.algorithm, **method.settings, **candidate.settings}
    return parse(tables)
