"""The command ``efl``. Slow imports (PyTorch, plotting) happen inside the commands that need them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from efl.errors import UserError

if TYPE_CHECKING:
    from efl.comparison import Job
    from efl.engine.files import Record, RunDirectory
    from efl.engine.run import Result
    from efl.track.progress import Display

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning for clients that are unlike each other and unreliable.",
)
paper_app = typer.Typer(no_args_is_help=True, help="Tables and figures of the paper, and what we changed in it.")
data_app = typer.Typer(no_args_is_help=True, help="Data sets.")
bench_app = typer.Typer(no_args_is_help=True, help="Speed and size, as ratios.")
app.add_typer(paper_app, name="paper")
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")

console = Console(highlight=False)

FileArgument = Annotated[
    Path | None, typer.Argument(help="Experiment file (TOML); default: EFL on digits.", show_default=False)
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as training.rounds=50.")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Where files go; default: a new one below runs/.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Runs at a time; default: one for each core.")]


@app.command()
def run(file: FileArgument = None, set_: SetOption = None, out: OutOption = None, quiet: QuietOption = False) -> None:
    """Run one experiment."""
    from efl.api import run as run_experiment
    from efl.comparison import new_directory
    from efl.config import load_experiment

    experiment = load_experiment(file, set_ or [])
    name = f"{experiment.algorithm_name}-{experiment.federation.dataset}"
    directory = out or new_directory(name)
    _play(directory, quiet, lambda displays: run_experiment(experiment, directory, displays))


@app.command()
def resume(directory: Annotated[Path, typer.Argument(help="A run directory.")], quiet: QuietOption = False) -> None:
    """Go on with a run that was stopped, whatever stopped it."""
    from efl.api import resume as resume_run
    from efl.engine.files import RunDirectory
    from efl.track.tables import summary_table

    if (summary := RunDirectory.open(directory).read_summary()) is not None:
        _say(f"{directory} is finished; there is nothing left to do.")
        console.print(summary_table(summary))
        return
    _play(directory, quiet, lambda displays: resume_run(directory, displays))


@app.command()
def compare(
    file: FileArgument = None,
    algorithms: Annotated[
        str, typer.Option(help="Names, separated by commas; name:preset for a preset.")
    ] = "efl,fedavg,fedprox",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for each algorithm.")] = 1,
    set_: SetOption = None,
    out: OutOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run the same experiment with several algorithms; one table, one report. Asked again, it goes on."""
    from efl.comparison import directories, new_directory, plan
    from efl.config import load_experiment
    from efl.track.report import write_comparison
    from efl.track.tables import comparison_rows, comparison_table, markdown

    experiment = load_experiment(file, set_ or [])
    where = out or new_directory(f"compare-{experiment.federation.dataset}")
    jobs = plan([name.strip() for name in algorithms.split(",") if name.strip()], experiment, seeds, where)
    groups = _run_jobs(jobs, where, workers, quiet)
    (where / "table.md").write_text(markdown(*comparison_rows(groups)))
    page = write_comparison(where, directories(jobs))
    console.print(comparison_table(groups))
    _say(f"Report: {page}")


@app.command()
def report(directories: Annotated[list[Path], typer.Argument(help="Run directories.")], out: OutOption = None) -> None:
    """Write report.html and figures: for a run into its directory, for several one that compares them."""
    from efl.comparison import new_directory, refuse_run_directory
    from efl.engine.files import RunDirectory
    from efl.track.report import write_comparison, write_report

    runs = [RunDirectory.open(directory) for directory in directories]
    if len(runs) == 1:
        page = write_report(runs[0])
    else:
        groups: dict[str, list[RunDirectory]] = {}
        for directory in runs:
            groups.setdefault(directory.experiment().algorithm_name, []).append(directory)
        where = out or new_directory("report")
        refuse_run_directory(where)
        page = write_comparison(where, groups)
    _say(f"Report: {page}")


@paper_app.command()
def ablation(
    scale: Annotated[
        Literal["smoke", "small", "full"], typer.Option(help="smoke: a minute; full: what docs/ablation.md shows.")
    ] = "full",
    out: OutOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """Every change we make to the paper, on and off."""
    from efl.paper import ablation as study

    where = out or Path("runs") / f"ablation-{scale}"
    jobs = study.plan(study.SCALES[scale], where)
    _run_jobs(jobs, where, workers, quiet)
    _say(study.write(jobs, where))
    _say(f"Table and figures: {where}")


@data_app.command("list")
def data_list() -> None:
    """What there is to train on."""
    from rich.table import Table

    from efl.federation import SOURCES

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("dataset", "what", "network", "partition"):
        table.add_column(title)
    for name, source in SOURCES.items():
        table.add_row(name, source.what, source.network, source.partition)
    console.print(table)


@bench_app.command()
def overhead(
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of each algorithm, alternating.")] = 60,
) -> None:
    """A round of EFL against a round of FedAvg on the same work."""
    from efl.bench.overhead import measure

    for line in measure(repeats):
        _say(str(line))


def _play(directory: Path, quiet: bool, start: Callable[[list[Display]], Result]) -> None:
    from efl.engine.files import RunDirectory
    from efl.track.progress import progress_displays
    from efl.track.report import write_report
    from efl.track.tables import summary_table

    displays = progress_displays(console, quiet=quiet)
    try:
        result = start(displays)
    except KeyboardInterrupt:
        for display in displays:
            display.close()
        _say(f"Stopped. Go on with: efl resume {directory}")
        raise typer.Exit(130) from None
    finally:
        for display in displays:
            display.close()
    console.print(summary_table(result.summary))
    if result.history:
        _say(f"Report: {write_report(RunDirectory.open(directory))}")
    if result.summary["diverged"]:
        raise typer.Exit(1)


def _say(text: str) -> None:
    """A line as it is: no markup, no folding, so that a path can be copied."""
    console.print(text, markup=False, soft_wrap=True)


def _run_jobs(jobs: list[Job], where: Path, workers: int | None, quiet: bool) -> dict[str, list[Record]]:
    from efl.comparison import refuse_run_directory, run_jobs

    refuse_run_directory(where)
    with _counting(len(jobs), quiet) as done:
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


def main() -> None:
    """Entry point: a user's mistake is one line on standard error and exit code 2."""
    try:
        app()
    except UserError as error:
        Console(stderr=True, highlight=False).print(f"efl: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
