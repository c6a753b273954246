"""The command ``efl``. Slow imports (PyTorch, plotting) happen inside the commands that need them."""

import sys
from contextlib import suppress
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from efl import __version__
from efl.cli import bench, data, deploy, listing, paper, runs, tune, watch
from efl.cli.options import say
from efl.cli.output import output
from efl.errors import UserError, machine_failure
from efl.processes import keep_freed_memory

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning for clients that are unlike each other and unreliable.",
)
for command in (runs.run, runs.resume, runs.compare, tune.tune, runs.report, watch.watch):
    app.command()(command)
for group in (paper, data, deploy, bench):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])
app.add_typer(listing.app, name="runs")


def _print_version(asked: bool) -> None:
    if asked:
        say(f"elastic-fl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Entry point: what goes wrong is one line on standard error.

    The exit code is 2 for a user's mistake, 3 where the machine failed: no room on a disk, no permission, no memory.
    """
    keep_freed_memory()
    output.failure = None
    try:
        app()
    except UserError as error:
        _fail(str(error), 2)
    except SystemExit as end:
        if output.failure is not None and not end.code:
            _fail(f"standard output: {machine_failure(output.failure)}", 3)
        raise
    except Exception as error:
        if (failure := machine_failure(error)) is None:
            raise
        _fail("; ".join([failure, *getattr(error, "__notes__", [])]), 3)


def _fail(line: str, code: int) -> NoReturn:
    with suppress(OSError):
        Console(stderr=True, highlight=False).print(f"efl: {line}", style="red", markup=False, soft_wrap=True)
    output.close_if_broken()
    sys.exit(code)
