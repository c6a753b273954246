"""efl runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from efl.cli.options import console, plain_table, say

if TYPE_CHECKING:
    from efl.runs.listing import Standing

app = typer.Typer(invoke_without_command=True, help="The runs there are, and how each stands.")
LONGEST = 1000  # characters of a line
QUOTED = 40  # characters of a value that a table shows


@app.callback()
def runs(
    context: typer.Context,
    folder: Annotated[Path, typer.Option("--in", help="The folder to search.")] = Path("runs"),
    best: Annotated[
        bool, typer.Option("--best", help="Of every algorithm on every data set the best run, best first.")
    ] = False,
) -> None:
    """List the runs below a folder: state, accuracy, bytes and age, the latest last."""
    if context.invoked_subcommand is not None:
        return
    from efl.runs.listing import best_of_each, runs_below, standing

    found = sorted((standing(run) for run in runs_below([folder])), key=lambda run: run.changed)
    now = time.time()
    table = plain_table("run", "algorithm", "data set", "state", "rounds", "best", "up", "down", "age")
    for run in best_of_each(found) if best else found:
        table.add_row(*_row(run, now))
    _print_whole(table)
    for run in found:
        if run.trouble:
            say(run.trouble)


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run directory.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
) -> None:
    """Show the settings in which two runs differ, and what each came to."""
    from efl.runs.directory import RunDirectory
    from efl.runs.listing import settings_that_differ, standing

    directories = [RunDirectory.open(path) for path in (first, second)]
    differing = settings_that_differ([directory.experiment() for directory in directories])
    table = plain_table("setting", str(first), str(second))
    for key, values in differing.items():
        table.add_row(key, *map(_shown, values))
    if not differing:
        table.add_row("all settings", "the same", "the same")
    now = time.time()
    rows = [_row(standing(directory), now) for directory in directories]
    names = ("state", "rounds", "best", "bytes up", "bytes down", "age")
    for name, *values in zip(names, *(row[3:] for row in rows), strict=True):
        table.add_row(name, *values)
    _print_whole(table)


def _print_whole(table: Table) -> None:
    """Print a table that nothing is cut off from, so that paths can be copied; a narrow terminal folds its lines."""
    needed = console.measure(table, options=console.options.update(max_width=LONGEST)).maximum
    Console(file=console.file, highlight=False, width=max(needed, console.width)).print(table)


def _row(run: Standing, now: float) -> list[str]:
    """A run as a line of the table."""
    from efl.track.text import bytes_text, duration, merit

    if run.experiment is None:
        return [str(run.directory.path), "", "", run.state, "", "", "", "", duration(now - run.changed)]
    figure = merit(run.best, run.share) + ("" if run.metric == "accuracy" or run.best is None else f" {run.metric}")
    return [
        str(run.directory.path),
        run.experiment.algorithm_name,
        run.experiment.federation.dataset,
        run.state,
        f"{run.rounds}/{run.experiment.training.rounds}",
        figure,
        bytes_text(run.bytes_up),
        bytes_text(run.bytes_down),
        duration(max(0.0, now - run.changed)),
    ]


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value!s:.{QUOTED}}"
