"""The command ``efl``. Slow imports (PyTorch, plotting) happen inside the commands that need them."""

import sys

import typer
from rich.console import Console

from efl.cli import bench, data, deploy, paper, runs
from efl.errors import UserError
from efl.processes import keep_freed_memory

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning for clients that are unlike each other and unreliable.",
)
for command in (runs.run, runs.resume, runs.compare, runs.report):
    app.command()(command)
for group in (paper, data, deploy, bench):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])


def main() -> None:
    """Entry point: a user's mistake is one line on standard error and exit code 2."""
    keep_freed_memory()
    try:
        app()
    except UserError as error:
        Console(stderr=True, highlight=False).print(f"efl: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
