"""Which runs there are below a folder, and how each of them stands."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efl.config import Experiment
from efl.errors import UserError
from efl.runs.directory import Record, RunDirectory

DEPTH = 3  # folders below the one that is searched
SILENT = 60.0  # seconds after which a run is taken as stopped, where locks cannot tell
FINISHED, DIVERGED, RUNNING, STOPPED, WAITING, DAMAGED = (
    "finished", "diverged", "running", "stopped", "not started", "damaged",
)  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """How a run stands; figures that it does not have yet are None.

    Attributes:
        directory: Where it is.
        state: finished, diverged, running, stopped (`efl resume` goes on with it), not started, or damaged.
        changed: When it last wrote something, in seconds since 1970.
        experiment: Its settings; None if they are damaged.
        rounds: How many it has done.
        best: The best mean of the figure of merit, for the global model.
        bytes_up: Bytes from clients.
        bytes_down: Bytes to clients.
        metric: What the figure of merit is.
        share: Whether that is a share, to be shown in percent.
        higher_is_better: Whether more of it is better.
        trouble: What is damaged.
    """

    directory: RunDirectory
    state: str
    changed: float
    experiment: Experiment | None = None
    rounds: int = 0
    best: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    metric: str = "accuracy"
    share: bool = True
    higher_is_better: bool = True
    trouble: str = ""

    @property
    def merit(self) -> float:
        """What runs are sorted by: more is better, and without a figure they come last."""
        return float("-inf") if self.best is None else self.best if self.higher_is_better else -self.best


def find_runs(path: Path, depth: int = DEPTH) -> Iterator[RunDirectory]:
    """The run directory at a path, or those below it, sorted by name."""
    if (path / "config.toml").is_file():
        yield RunDirectory(path)
    elif depth >= 0:
        try:
            below = sorted(one.path for one in os.scandir(path) if one.is_dir() and not one.name.startswith("."))
        except OSError:
            return
        for one in below:
            yield from find_runs(Path(one), depth - 1)


def runs_below(paths: Iterable[Path]) -> list[RunDirectory]:
    """The run directories at or below some paths, each once; `UserError` if one of them has none."""
    found: dict[Path, RunDirectory] = {}
    for path in paths:
        runs = list(find_runs(path))
        if not runs:
            what = "there is no run in it" if path.is_dir() else "no such directory"
            raise UserError(f"{path}: {what}; give a run directory, or a folder of them")
        found |= {run.path.resolve(): run for run in runs}
    return list(found.values())


def standing(directory: RunDirectory) -> Standing:
    """How a run stands; one that is damaged is listed, too."""
    changed = last_change(directory)
    try:
        experiment, summary = directory.experiment(), directory.read_summary()
        if summary is not None:
            return Standing(directory, state_of(directory, summary), changed, experiment, **_ended(summary))
        history = directory.history()
        return Standing(directory, state_of(directory, None), changed, experiment, **_so_far(history))
    except UserError as error:
        return Standing(directory, DAMAGED, changed, trouble=str(error))


def state_of(directory: RunDirectory, summary: Record | None) -> str:
    """What a run does, or how it ended."""
    if summary is not None:
        return DIVERGED if summary["diverged"] else FINISHED
    busy = directory.is_in_use()
    if busy is None:
        busy = time.time() - last_change(directory) < SILENT
    if busy:
        return RUNNING
    return STOPPED if directory.metrics.exists() else WAITING


def last_change(directory: RunDirectory) -> float:
    """When a run last wrote something."""
    times = [0.0]
    for path in (directory.config, directory.metrics, directory.summary):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times)


def best_of_each(runs: Iterable[Standing]) -> list[Standing]:
    """The best run of every algorithm on every data set; data sets by name, the best algorithm first."""
    best: dict[tuple[str, str], Standing] = {}
    for run in runs:
        if run.experiment is not None and run.best is not None:
            key = run.experiment.federation.dataset, run.experiment.algorithm_name
            if key not in best or run.merit > best[key].merit:
                best[key] = run
    return [best[key] for key in sorted(best, key=lambda key: (key[0], -best[key].merit, key[1]))]


def settings_that_differ(experiments: Sequence[Experiment]) -> dict[str, list[Any]]:
    """Keys that do not have the same value in all experiments, and the values; None where a key is not set.

    >>> other = Experiment().with_values(training={"cohort": 5})
    >>> settings_that_differ([Experiment(), other])
    {'training.cohort': [10, 5]}
    """
    flat = [experiment.flat() for experiment in experiments]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    values = {key: [settings.get(key) for settings in flat] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def _ended(summary: Record) -> dict[str, Any]:
    """The figures of a run that has ended."""
    return {
        "rounds": summary["rounds"],
        "best": summary["bmta_global"],
        "bytes_up": summary["bytes_up"],
        "bytes_down": summary["bytes_down"],
        "metric": summary.get("metric", "accuracy"),
        "share": summary.get("metric_is_share", True),
        "higher_is_better": summary.get("higher_is_better", True),
    }


def _so_far(history: Sequence[Record]) -> dict[str, Any]:
    """The same of one that has not."""
    merit = merit_of(history)
    values = [record[merit["metric"]] for record in history if record.get(merit["metric"]) is not None]
    return {
        "rounds": len(history),
        "best": (max if merit["higher_is_better"] else min)(values, default=None),
        "bytes_up": sum(record["bytes_up"] for record in history),
        "bytes_down": sum(record["bytes_down"] for record in history),
        **merit,
    }


def merit_of(history: Iterable[Record]) -> dict[str, Any]:
    """What evaluated rounds are judged by; older records have accuracy."""
    judged: Record = next((record for record in history if "metric" in record), {})
    return {
        "metric": judged.get("metric", "accuracy"),
        "share": bool(judged.get("metric_is_share", judged.get("metric", "accuracy") == "accuracy")),
        "higher_is_better": bool(judged.get("higher_is_better", True)),
    }
