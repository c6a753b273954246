"""efl bench."""

from typing import Annotated

import typer

from efl.cli.common import say

app = typer.Typer(no_args_is_help=True, help="Speed and size, as ratios.")


@app.callback()
def bench() -> None:
    """Speed and size, as ratios."""


@app.command()
def overhead(
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of each algorithm, alternating.")] = 60,
) -> None:
    """A round of EFL against a round of FedAvg on the same work."""
    from efl.bench.overhead import measure

    for line in measure(repeats):
        say(str(line))
