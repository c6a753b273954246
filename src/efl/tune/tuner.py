"""Several searches side by side, one run of each at a time: what is drawn does not depend on how many there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from efl.algorithms import find
from efl.config import Experiment
from efl.errors import UserError
from efl.plugins import load_plugin
from efl.runs.comparison import plan
from efl.runs.data import DataCache
from efl.runs.pool import PROCESS_DATA, run_pool
from efl.tune.search import Effort, Search
from efl.tune.space import check_overrides, parse_override, space_of
from efl.tune.storage import optuna_module
from efl.tune.trials import Outcome, Trial, make

OnDone = Callable[[Search, Trial, Outcome], None]


def searches(
    algorithms: Sequence[str], experiment: Experiment, overrides: Sequence[str], effort: Effort, out: Path
) -> list[Search]:
    """A search for each algorithm, in the same experiment.

    Args:
        algorithms: Names, as for a comparison; keys of [algorithm] reach them in the same way.
        experiment: What to start from.
        overrides: ``--space`` options.
        effort: How much is searched for each.
        out: Where it is kept; what is there already is not searched again.

    Raises:
        UserError: If something is wrong with an experiment or a range; before the first run.
    """
    optuna_module()
    for file in experiment.plugins:
        load_plugin(file)
    for name in algorithms:
        find(name)
    said = [parse_override(text) for text in overrides]
    check_overrides(said, algorithms)
    data = DataCache()
    jobs = plan(list(algorithms), experiment, 1, out)
    if effort.trials < 1:
        raise UserError(f"--trials must be at least 1, got {effort.trials}")
    return [
        Search(job.label, job.experiment, space_of(job.label, job.experiment, said), effort, out, data) for job in jobs
    ]


def tune(found: Sequence[Search], workers: int | None = None, on_done: OnDone | None = None) -> None:
    """Make all runs of some searches, ``workers`` at a time, one of each search; go on where they were stopped."""
    workers = min(workers or os.cpu_count() or 1, len(found))

    def note(search: Search, trial: Trial, outcome: Outcome) -> None:
        search.done(trial, outcome)
        if on_done is not None:
            on_done(search, trial, outcome)

    if workers == 1:
        _in_turn(found, note)
    else:
        _in_processes(found, workers, note)


def _in_turn(found: Sequence[Search], note: OnDone) -> None:
    data, left = DataCache(), list(found)
    while left:
        for search in list(left):
            if (trial := search.next()) is None:
                left.remove(search)
            else:
                note(search, trial, make(trial, data))


def _in_processes(found: Sequence[Search], workers: int, note: OnDone) -> None:
    running: dict[Future[Outcome], tuple[Search, Trial]] = {}
    with run_pool(workers) as pool:

        def submit(search: Search) -> None:
            if (trial := search.next()) is not None:
                running[pool.submit(_make, trial)] = search, trial

        for search in found:
            submit(search)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                search, trial = running.pop(future)
                note(search, trial, future.result())
                submit(search)


def _make(trial: Trial) -> Outcome:
    return make(trial, PROCESS_DATA, workers_each=1)
