"""What the commands share: the console, common options, and running many experiments with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from efl.runs.comparison import Job
    from efl.runs.directory import Record

console = Console(highlight=False)
DEMO = Path(__file__).with_name("demo.toml")  # the experiment without a file: irregular clients

FileArgument = Annotated[
    Path | None, typer.Argument(help="Experiment file (TOML); default: a demo, EFL on digits.", show_default=False)
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as training.rounds=50.")
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE", help="Python file that registers algorithms, models, data sets, …"),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Where files go; default: a new one below runs/.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
DataOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Where prepared data sets lie; default: $EFL_DATA, or the cache.")
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Runs at a time; default: one for each core.")]


def say(text: str) -> None:
    """A line as it is: no markup, no folding, so that a path can be copied."""
    console.print(text, markup=False, soft_wrap=True)


def plain_table(*titles: str) -> Table:
    """A table without lines; without titles, one of pairs."""
    table = Table(show_header=bool(titles), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title)
    return table


def run_all(
    jobs: list[Job],
    where: Path,
    workers: int | None,
    quiet: bool,
    then: Callable[[Job, Record], None] | None = None,
) -> dict[str, list[Record]]:
    """Play these runs, those that are finished excepted; summaries by label. ``then`` is told of each as it ends."""
    from efl.runs.comparison import refuse_run_directory, run_jobs

    refuse_run_directory(where)
    with _counting(len(jobs), quiet) as show:

        def done(job: Job, summary: Record) -> None:
            for listener in (show, then):
                if listener is not None:
                    listener(job, summary)

        return run_jobs(jobs, workers, done)


@contextmanager
def _counting(total: int, quiet: bool) -> Iterator[Callable[[Job, Record], None] | None]:
    """Progress over whole runs."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from efl.track.text import percent

    if quiet:
        yield None
        return
    if not console.is_terminal:
        yield lambda job, summary: console.print(
            f"{job.label}, seed {summary['seed']}: best {percent(summary['bmta_global'])}", soft_wrap=True
        )
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("runs", total=total)

        def done(job: Job, summary: Record) -> None:
            progress.update(task, advance=1, description=f"{job.label}, seed {summary['seed']}")

        yield done
