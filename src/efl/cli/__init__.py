"""The command ``efl``. Slow imports (PyTorch, plotting) happen inside the commands that need them."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from efl import __version__
from efl.cli import bench, data, deploy, paper, runs
from efl.cli.options import say
from efl.errors import UserError
from efl.processes import keep_freed_memory

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning for clients that are unlike each other and unreliable.",
)
for command in (runs.run, runs.resume, runs.compare, runs.report):
    app.command()(command)
for group in (paper, data, deploy, bench):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])


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
    """Entry point: a user's mistake is one line on standard error and exit code 2."""
    keep_freed_memory()
    try:
        app()
    except UserError as error:
        Console(stderr=True, highlight=False).print(f"efl: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
