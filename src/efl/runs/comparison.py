"""Many runs: the same experiment with several algorithms and seeds, side by side, each in its own process.

Every run has its directory. Asked again with the same experiment, finished runs are kept and unfinished ones go on, so
a long comparison can be stopped at any time.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from efl.algorithms import every_name, find
from efl.config import Experiment
from efl.runs.directory import Record, RunDirectory
from efl.runs.loop import Run
from efl.runs.setup import prepare
from efl.errors import UserError
from efl.plugins import load_plugin
from efl.processes import end_with_parent
from efl.settings import unknown_key

Groups = dict[str, list[Record]]


@dataclass(frozen=True)
class Job:
    """A run to be made: its label in tables, its experiment, its directory."""

    label: str
    experiment: Experiment
    directory: Path


def compare(
    algorithms: Sequence[str],
    experiment: Experiment | None = None,
    *,
    seeds: int = 1,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
) -> Groups:
    """The summaries of every algorithm's runs, one a seed.

    >>> groups = compare(["efl", "fedavg"], Experiment().with_values(training={"rounds": 1}), workers=1)
    >>> [runs[0]["rounds"] for runs in groups.values()]
    [1, 1]
    """
    with nullcontext(str(out)) if out is not None else tempfile.TemporaryDirectory() as path:
        jobs = plan(algorithms, experiment or Experiment(), seeds, Path(path))
        return run_jobs(jobs, workers)


def named(algorithms: str) -> list[str]:
    """The algorithms in a list with commas; ``all`` is every one, with its presets.

    >>> named("efl, mime:lite")
    ['efl', 'mime:lite']
    """
    return every_name() if algorithms == "all" else [name.strip() for name in algorithms.split(",") if name.strip()]


def plan(algorithms: Sequence[str], experiment: Experiment, seeds: int, out: Path) -> list[Job]:
    """The runs of a comparison.

    Hyper-parameters of the experiment go to all algorithms that know them, those below an algorithm's name to it alone.
    """
    for file in experiment.plugins:
        load_plugin(file)
    if not algorithms or seeds < 1:
        raise UserError("a comparison needs at least one algorithm and one seed")
    if len(set(algorithms)) < len(algorithms):
        raise UserError(f"an algorithm is named twice: {', '.join(algorithms)}")
    known = {name: {field.name for field in fields(find(name)[0])} for name in algorithms}
    settings, own = _shared_and_own(experiment.algorithm_settings)
    if strangers := sorted(set(own) - set(algorithms)):
        raise UserError(unknown_key(f"algorithm.{strangers[0]}", [f"algorithm.{name}" for name in algorithms]))
    for key in settings:
        if not any(key in names for names in known.values()):
            raise UserError(unknown_key(f"algorithm.{key}", sorted(set().union(*known.values()))))
    first = experiment.training.seed
    jobs: list[Job] = []
    for name in algorithms:
        section = {"name": name, **{key: value for key, value in settings.items() if key in known[name]}}
        section |= own.get(name, {})
        one = experiment.model_copy(update={"algorithm": section})
        for seed in range(first, first + seeds):
            directory = out / f"{name.replace(':', '-')}-seed{seed}"
            jobs.append(Job(name, one.with_values(training={"seed": seed}), directory))
    return jobs


def _shared_and_own(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings for all, and by algorithm, written as tables or with a dot.

    >>> _shared_and_own({"density_up": 0.1, "fedprox": {"proximity": 1}, "fedamp.proximity": 2})
    ({'density_up': 0.1}, {'fedprox': {'proximity': 1}, 'fedamp': {'proximity': 2}})
    """
    shared: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        name, dot, rest = key.partition(".")
        if isinstance(value, Mapping):
            own.setdefault(key, {}).update(value)
        elif dot:
            own.setdefault(name, {})[rest] = value
        else:
            shared[key] = value
    return shared, own


def run_jobs(
    jobs: Sequence[Job], workers: int | None = None, on_done: Callable[[Job, Record], None] | None = None
) -> Groups:
    """Make the runs, several at once, and group their summaries by label in the order of ``jobs``."""
    for job in jobs:
        prepare_directory(job)  # what is wrong with an experiment shows before any of them starts
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    summaries: dict[Path, Record] = {}

    def note(job: Job, summary: Record) -> None:
        summaries[job.directory] = summary
        if on_done is not None:
            on_done(job, summary)

    if workers == 1:
        for job in jobs:
            note(job, play(job))
    else:
        spawning = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, spawning, initializer=end_with_parent) as pool:
            futures = {pool.submit(play, job, workers_each=1): job for job in jobs}
            try:
                for future in as_completed(futures):
                    note(futures[future], future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    groups: Groups = {}
    for job in jobs:
        groups.setdefault(job.label, []).append(summaries[job.directory])
    return groups


def prepare_directory(job: Job) -> None:
    """Make the run's directory, or see that the one there holds the same experiment."""
    experiment = prepare(job.experiment).experiment
    if not (job.directory / "config.toml").exists():
        RunDirectory.create(job.directory, experiment)
    elif RunDirectory.open(job.directory).experiment() != experiment:
        raise UserError(f"{job.directory} already holds another experiment; choose another --out")


def play(job: Job, workers_each: int | None = None) -> Record:
    """Make one run, or finish it, or take it as it is; by itself it may use all processors, among others not."""
    directory = RunDirectory.open(job.directory)
    if (summary := directory.read_summary()) is not None:
        return summary
    experiment = directory.experiment()
    if workers_each is not None and experiment.engine.workers == "auto":
        experiment = experiment.with_values(engine={"workers": workers_each})
    return Run(prepare(experiment), directory).execute().summary


def directories(jobs: Sequence[Job]) -> Mapping[str, list[RunDirectory]]:
    """The run directories of a comparison by label, for its report."""
    grouped: dict[str, list[RunDirectory]] = {}
    for job in jobs:
        grouped.setdefault(job.label, []).append(RunDirectory.open(job.directory))
    return grouped


def new_directory(name: str, parent: str | os.PathLike[str] = "runs") -> Path:
    """runs/NAME-1, or the next number that is free."""
    clean = "".join(c if c.isalnum() or c in ".-" else "-" for c in name)
    number = 1
    while (Path(parent) / f"{clean}-{number}").exists():
        number += 1
    return Path(parent) / f"{clean}-{number}"


def refuse_run_directory(path: Path) -> None:
    """Raise `UserError` if a comparison would be written over a single run."""
    if (path / "config.toml").exists():
        raise UserError(f"{path} already holds a run; choose another --out")
