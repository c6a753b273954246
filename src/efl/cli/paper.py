"""efl paper."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from efl.cli.common import OutOption, QuietOption, WorkersOption, run_all, say

if TYPE_CHECKING:
    from efl.paper.checks import Outcome

ScaleOption = Annotated[
    Literal["smoke", "small", "full"], typer.Option(help="smoke: seconds; full: what docs/theory.md shows.")
]

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


@app.command()
def theorem1(scale: ScaleOption = "full", out: OutOption = None) -> None:
    """How near the optimum training comes, against Theorem 1's bound; exit code 1 if a check fails."""
    from efl.paper import theorem1 as study

    _judge("theorem1", scale, out, lambda where: study.run(study.SCALES[scale], where))


@app.command()
def theorem2(scale: ScaleOption = "full", out: OutOption = None) -> None:
    """How far the optimum moves when a client leaves or joins, against Theorem 2's bound."""
    from efl.paper import theorem2 as study

    _judge("theorem2", scale, out, lambda where: study.run(study.SCALES[scale], where))


@app.command()
def table1(scale: ScaleOption = "full", out: OutOption = None) -> None:
    """Rounds to accuracy ε: Table 1's formulas, and EFL measured."""
    from efl.paper import table1 as study

    _judge("table1", scale, out, lambda where: study.run(study.SCALES[scale], where))


def _judge(name: str, scale: str, out: Path | None, study: Callable[[Path], "Outcome"]) -> None:
    """Run a study of checks, say how each came out, and exit with 1 if one failed."""
    from efl.comparison import refuse_run_directory

    where = out or Path("runs") / f"{name}-{scale}"
    refuse_run_directory(where)
    where.mkdir(parents=True, exist_ok=True)
    outcome = study(where)
    for check in outcome.checks:
        say(str(check))
    say(f"Table and figures: {where}")
    if not outcome.passed:
        raise typer.Exit(1)
