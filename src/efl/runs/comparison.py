"""Many runs: the same experiment with several algorithms and seeds, side by side, each in its own process.

Every run has its directory. Asked again with the same experiment, finished runs are kept and unfinished ones go on, so
a long comparison can be stopped at any time.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from efl.algorithms import Algorithm, every_name, find, name_of
from efl.config import Experiment
from efl.errors import UserError
from efl.plugins import load_plugin
from efl.runs.data import DataCache
from efl.runs.directory import Record, RunDirectory
from efl.runs.loop import Run
from efl.runs.pool import PROCESS_DATA, run_pool
from efl.runs.setup import build
from efl.settings import unknown_key

Groups = dict[str, list[Record]]
Algorithms = Sequence[str | Algorithm] | Mapping[str, str | Algorithm]


@dataclass(frozen=True)
class Job:
    """A run to be made: its label in tables, its experiment, its directory, and the algorithm if that is an object."""

    label: str
    experiment: Experiment
    directory: Path
    algorithm: Algorithm | None = None

    @property
    def can_travel(self) -> bool:
        """Whether another process finds the algorithm's class: not if it was defined in an interactive session."""
        cls = find(self.experiment.algorithm_name)[0] if self.algorithm is None else type(self.algorithm)
        return cls.__module__ != "__main__" or hasattr(sys.modules["__main__"], "__file__")


def compare(
    algorithms: Algorithms,
    experiment: Experiment | None = None,
    *,
    seeds: int = 1,
    out: str | os.PathLike[str] | None = None,
    workers: int | None = None,
) -> Groups:
    """Run the same experiment with several algorithms.

    Args:
        algorithms: Names (``"efl"``, ``"efl:paper"``) and instances (``efl.EFL(elasticity=1)``), or a mapping from the
            labels they are to have in tables to them.
        experiment: Everything else; the default experiment if left out. Its ``[algorithm]`` hyper-parameters go to all
            algorithms given by name that have them, those below an algorithm's name to that one alone.
        seeds: Runs of each algorithm, with the seed of the experiment and those that follow it.
        out: Where run directories go. Called again with the same experiment, finished runs are kept and unfinished
            ones continue. Left out, nothing is kept.
        workers: How many runs are made at a time, each in a process of its own; by default one per processor.

    Returns:
        The summaries of every algorithm's runs, one for each seed, by label.

    Raises:
        UserError: If something is wrong with any of the runs; before the first one starts.

    >>> base = Experiment().with_values(training={"rounds": 1})
    >>> groups = compare({"plain": "fedavg", "dense": find("efl")[0](density_up=1.0)}, base, workers=1)
    >>> [(label, runs[0]["rounds"]) for label, runs in groups.items()]
    [('plain', 1), ('dense', 1)]
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


def plan(algorithms: Algorithms, experiment: Experiment, seeds: int, out: Path) -> list[Job]:
    """The runs of a comparison.

    Hyper-parameters of the experiment go to all named algorithms that know them, those below an algorithm's name to it
    alone; objects have theirs.
    """
    for file in experiment.plugins:
        load_plugin(file)
    labelled = _labelled(algorithms)
    if not labelled or seeds < 1:
        raise UserError("a comparison needs at least one algorithm and one seed")
    sections = _sections({label: one for label, one in labelled.items() if isinstance(one, str)}, experiment)
    jobs: list[Job] = []
    for label, algorithm in labelled.items():
        one = experiment.model_copy(update={"algorithm": sections[label]}) if label in sections else experiment
        folder = "".join(sign if sign.isalnum() or sign in "-._" else "-" for sign in label)
        for seed in range(experiment.training.seed, experiment.training.seed + seeds):
            given = None if isinstance(algorithm, str) else algorithm
            directory = out / f"{folder}-seed{seed}"
            jobs.append(Job(label, one.with_values(training={"seed": seed}), directory, given))
    if len({job.directory for job in jobs}) < len(jobs):
        raise UserError(f"labels must differ in letters or digits: {', '.join(labelled)}")
    return jobs


def _labelled(algorithms: Algorithms) -> dict[str, str | Algorithm]:
    """By label; without labels, by name."""
    if isinstance(algorithms, Mapping):
        return dict(algorithms)
    named = [(one if isinstance(one, str) else name_of(one), one) for one in algorithms]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"an algorithm is named twice: {twice}; in Python, give labels: compare({{'label': …, …}})")
    return dict(named)


def _sections(names: Mapping[str, str], experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The [algorithm] section of each algorithm given by name, by label."""
    known = {name: {field.name for field in fields(find(name)[0])} for name in names.values()}
    settings, own = _shared_and_own(experiment.algorithm_settings)
    if strangers := sorted(set(own) - set(known)):
        raise UserError(unknown_key(f"algorithm.{strangers[0]}", [f"algorithm.{name}" for name in known]))
    for key in settings:
        if known and not any(key in keys for keys in known.values()):
            raise UserError(unknown_key(f"algorithm.{key}", sorted(set().union(*known.values()))))
    return {
        label: {"name": name, **{k: v for k, v in settings.items() if k in known[name]}, **own.get(name, {})}
        for label, name in names.items()
    }


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
    """Make the runs, several at once, and group their summaries by label in the order of ``jobs``.

    Each process loads a data set once, however many runs use it.
    """
    data = DataCache()
    jobs_by_data = sorted(jobs, key=lambda job: (str(job.experiment.federation), job.experiment.training.seed))
    for job in jobs_by_data:
        prepare_directory(job, data)  # what is wrong with an experiment shows before any of them starts
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    summaries: dict[Path, Record] = {}

    def note(job: Job, summary: Record) -> None:
        summaries[job.directory] = summary
        if on_done is not None:
            on_done(job, summary)

    if workers == 1 or not all(job.can_travel for job in jobs):
        for job in jobs_by_data:
            note(job, run_job(job, data))
    else:
        _run_in_processes(jobs_by_data, workers, note)
    groups: Groups = {}
    for job in jobs:
        groups.setdefault(job.label, []).append(summaries[job.directory])
    return groups


def _run_in_processes(jobs: Sequence[Job], workers: int, note: Callable[[Job, Record], None]) -> None:
    with run_pool(workers) as pool:
        futures = {pool.submit(_run_in_process, job): job for job in jobs}
        for future in as_completed(futures):
            note(futures[future], future.result())


def _run_in_process(job: Job) -> Record:
    return run_job(job, PROCESS_DATA, workers_each=1)


def prepare_directory(job: Job, data: DataCache) -> None:
    """Make the run's directory, or see that the one there holds the same experiment."""
    experiment = build(job.experiment, algorithm=job.algorithm, data=data).experiment
    if not (job.directory / "config.toml").exists():
        RunDirectory.create(job.directory, experiment)
    elif RunDirectory.open(job.directory).experiment() != experiment:
        raise UserError(f"{job.directory} already holds another experiment; choose another --out")


def run_job(job: Job, data: DataCache, workers_each: int | None = None) -> Record:
    """Make one run, or finish it, or take it as it is; by itself it may use all processors, among others not."""
    directory = RunDirectory.open(job.directory)
    if (summary := directory.read_summary()) is not None:
        return summary
    experiment = directory.experiment()
    if workers_each is not None and experiment.engine.workers == "auto":
        experiment = experiment.with_values(engine={"workers": workers_each})
    return Run(build(experiment, algorithm=job.algorithm, data=data), directory).execute().summary


def directories(jobs: Sequence[Job]) -> Mapping[str, list[RunDirectory]]:
    """The run directories of a comparison by label, for its report."""
    grouped: dict[str, list[RunDirectory]] = {}
    for job in jobs:
        grouped.setdefault(job.label, []).append(RunDirectory.open(job.directory))
    return grouped
