"""efl run, resume, compare, report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efl.cli.options import (
    DEMO,
    FileArgument,
    OutOption,
    PluginOption,
    QuietOption,
    SetOption,
    WatchOption,
    WorkersOption,
    console,
    say,
)
from efl.cli.watch import watched

if TYPE_CHECKING:
    from efl.runs.directory import RunDirectory
    from efl.runs.loop import Observer
    from efl.runs.result import Result


def run(
    file: FileArgument = None,
    set_: SetOption = None,
    out: OutOption = None,
    plugin: PluginOption = None,
    watch: WatchOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one experiment."""
    from efl.api import run as run_experiment
    from efl.config import load_experiment
    from efl.runs.directory import new_directory

    experiment = load_experiment(file or DEMO, set_ or [], plugin or [])
    name = f"{experiment.algorithm_name}-{experiment.federation.dataset}"
    directory = out or new_directory(name)
    with watched(directory, watch):
        with _progress(directory, quiet) as displays:
            result = run_experiment(experiment, directory, displays)
        _report(directory, result)


def resume(
    directory: Annotated[Path, typer.Argument(help="A run directory.")],
    plugin: PluginOption = None,
    watch: WatchOption = False,
    quiet: QuietOption = False,
) -> None:
    """Go on with a run that was stopped, whatever stopped it."""
    from efl.api import resume as resume_run
    from efl.runs.directory import RunDirectory
    from efl.track.tables import summary_table

    if (summary := RunDirectory.open(directory).read_summary()) is not None:
        say(f"{directory} is finished; there is nothing left to do.")
        console.print(summary_table(summary))
        return
    with watched(directory, watch):
        with _progress(directory, quiet) as displays:
            result = resume_run(directory, displays, plugins=plugin or ())
        _report(directory, result)


def compare(
    file: FileArgument = None,
    algorithms: Annotated[
        str, typer.Option(help="Names, separated by commas; name:preset for a preset; all for every one.")
    ] = "efl,fedavg,fedprox",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for each algorithm.")] = 1,
    set_: SetOption = None,
    out: OutOption = None,
    plugin: PluginOption = None,
    workers: WorkersOption = None,
    watch: WatchOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the same experiment with several algorithms; one table, one report. Asked again, it goes on."""
    from efl.config import load_experiment
    from efl.runs.comparison import directories, named, plan
    from efl.runs.directory import new_directory, refuse_run_directory
    from efl.track.progress import run_with_progress
    from efl.track.report import write_comparison
    from efl.track.tables import comparison_rows, comparison_table, markdown

    experiment = load_experiment(file or DEMO, set_ or [], plugin or [])
    where = out or new_directory(f"compare-{experiment.federation.dataset}")
    jobs = plan(named(algorithms), experiment, seeds, where)
    refuse_run_directory(where)
    with watched(where, watch):
        groups = run_with_progress(jobs, workers, console=console, quiet=quiet)
        (where / "table.md").write_text(markdown(*comparison_rows(groups)))
        page = write_comparison(where, directories(jobs))
        console.print(comparison_table(groups))
        say(f"Report: {page}")


def report(directories: Annotated[list[Path], typer.Argument(help="Run directories.")], out: OutOption = None) -> None:
    """Write report.html and figures: for a run into its directory, for several one that compares them."""
    from efl.runs.directory import RunDirectory, new_directory, refuse_run_directory
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
    say(f"Report: {page}")


@contextmanager
def _progress(directory: Path, quiet: bool) -> Iterator[list[Observer]]:
    """Show a run while it lasts; Ctrl-C stops it, or a failure of the machine, and it can be resumed."""
    from efl.track.progress import run_progress

    try:
        with run_progress(console, quiet=quiet) as displays:
            yield displays
    except KeyboardInterrupt:
        say(f"Stopped. Go on with: efl resume {directory}")
        raise typer.Exit(130) from None
    except Exception as error:
        if (directory / "config.toml").exists():
            error.add_note(f"go on with: efl resume {directory}")
        raise


def _report(directory: Path, result: Result) -> None:
    """Print what a run came to, and write its report."""
    from efl.runs.directory import RunDirectory
    from efl.track.report import write_report
    from efl.track.tables import summary_table

    if not result.summary:
        return  # rank 0 of torchrun has the result
    console.print(summary_table(result.summary))
    if result.history:
        say(f"Report: {write_report(RunDirectory.open(directory))}")
    if result.summary["diverged"]:
        raise typer.Exit(1)
