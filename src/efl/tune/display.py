"""How far a search is: a bar on a terminal, a line for every run otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from efl.track.text import merit
from efl.tune.search import Search
from efl.tune.trials import Outcome, Trial
from efl.tune.tuner import OnDone


@contextmanager
def search_progress(console: Console, searches: Sequence[Search], *, quiet: bool = False) -> Iterator[OnDone]:
    """Show what runs come to; yields what to call with each."""
    if quiet:
        yield lambda search, trial, outcome: None
    elif not console.is_terminal:
        yield lambda search, trial, outcome: console.print(
            line(search, trial, outcome), soft_wrap=True, markup=False, highlight=False
        )
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("search", total=sum(map(_expected, searches)))
            progress.update(task, completed=sum(one.rounds for search in searches for one in search.tried()))

            def note(search: Search, trial: Trial, outcome: Outcome) -> None:
                progress.update(task, advance=outcome.rounds, description=line(search, trial, outcome))

            yield note


def _expected(search: Search) -> int:
    """Rounds of all trials and further seeds, if there are as many finalists as there may be."""
    effort = search.effort
    return search.rounds * (effort.trials + (1 + effort.finalists) * effort.confirmations)


def line(search: Search, trial: Trial, outcome: Outcome) -> str:
    """What one run came to."""
    what = f"trial {trial.number}" if trial.seed is None else f"trial {trial.number} with another seed"
    if outcome.value is None:
        return f"{search.label}, {what}: diverged"
    pruned = f", pruned after {outcome.rounds} rounds" if outcome.pruned else ""
    return f"{search.label}, {what}: {merit(outcome.value, search.share)}{pruned}"
