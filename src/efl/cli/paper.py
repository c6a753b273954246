"""efl paper."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from efl.cli.common import OutOption, QuietOption, WorkersOption, run_all, say

app = typer.Typer(no_args_is_help=True, help="Tables and figures of the paper, and what we changed in it.")


@app.callback()
def paper() -> None:
    """Tables and figures of the paper, and what we changed in it."""


@app.command()
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
    run_all(jobs, where, workers, quiet)
    say(study.write(jobs, where))
    say(f"Table and figures: {where}")
