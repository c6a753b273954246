"""What the commands share: the console and common options."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Annotated, cast

import typer
from rich.console import Console
from rich.table import Table

from efl.cli.output import output

console = Console(highlight=False, file=cast(IO[str], output))
DEMO = Path(__file__).with_name("demo.toml")  # the experiment without a file: irregular clients

FileArgument = Annotated[
    Path | None, typer.Argument(help="Experiment file (TOML); default: a demo, EFL on digits.", show_default=False)
]


def _keys(typed: str) -> list[str]:
    """The keys of an experiment that begin with what was typed, for the shell."""
    from efl.config import section_keys

    keys = [f"{section}.{key}=" for section, keys in section_keys().items() for key in keys]
    return [key for key in [*keys, "algorithm.name="] if key.startswith(typed)]


SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as training.rounds=50.", autocompletion=_keys),
]
PluginOption = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE", help="Python file that registers algorithms, models, data sets, …"),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Where files go; default: a new one below runs/.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
WatchOption = Annotated[bool, typer.Option("--watch", help="Show it as a live page in a browser, too.")]
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
