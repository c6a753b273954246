"""efl paper."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from efl.cli.options import OutOption, QuietOption, SetOption, WorkersOption, say
from efl.errors import UserError

if TYPE_CHECKING:
    from efl.paper.checks import Outcome
    from efl.paper.results import Results
    from efl.paper.study import Study

ScaleOption = Annotated[
    Literal["smoke", "small", "full"], typer.Option(help="smoke: seconds; full: what docs/theory.md shows.")
]
StudyScaleOption = Annotated[
    Literal["smoke", "small", "medium", "full"],
    typer.Option(
        help="smoke: a minute, on stand-ins; small: real data, reduced; medium: hours; full: the paper's setting, days."
    ),
]
SeedsOption = Annotated[int, typer.Option(min=1, help="Seeds, none of which was used to choose a setting.")]
RoundsOption = Annotated[int | None, typer.Option(min=1, help="Fewer rounds than the cases have.")]
DatasetsOption = Annotated[
    str | None, typer.Option(help="Only these columns, separated by commas; the others can be added later.")
]
MethodsOption = Annotated[
    str | None,
    typer.Option(help="Only these rows, by their names, separated by commas; the others can be added later."),
]
StudySeedsOption = Annotated[int | None, typer.Option(min=1, help="Seeds; default: as the scale has it.")]
TrialsOption = Annotated[
    int | None, typer.Option(min=1, help="Budget of each search, in runs; 1: none. Default: as the scale has it.")
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
    from efl.runs.directory import refuse_run_directory
    from efl.track.progress import run_with_progress

    where = out or Path("runs") / f"ablation-{scale}"
    jobs = study.plan(study.SCALES[scale], where)
    refuse_run_directory(where)
    run_with_progress(jobs, workers, quiet=quiet)
    say(study.write(jobs, where))
    say(f"Table and figures: {where}")


@app.command()
def choose(
    seeds: SeedsOption = 5,
    datasets: DatasetsOption = None,
    rounds: RoundsOption = None,
    ceilings: Annotated[bool, typer.Option("--ceilings", help="Also EFL with as many bytes as it likes.")] = False,
    out: OutOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """EFL against FedAvg and SCAFFOLD at their best, accuracy and bytes; by default on the data sets at hand."""
    from efl.paper import choose as study

    cases = [case.with_ceilings() if ceilings else case for case in study.chosen_cases(datasets)]
    _compare(study, cases, seeds, rounds, out or Path("runs") / "choose", workers, quiet)


@app.command()
def defaults(
    seeds: SeedsOption = 2,
    datasets: DatasetsOption = None,
    rounds: RoundsOption = None,
    out: OutOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """What EFL, FedAvg and SCAFFOLD lose by their default η and λ against the best of others."""
    from efl.paper import defaults as study
    from efl.paper.choose import chosen_cases

    _compare(study, chosen_cases(datasets), seeds, rounds, out or Path("runs") / "defaults", workers, quiet)


def _compare(
    study: Any, cases: list[Any], seeds: int, rounds: int | None, where: Path, workers: int | None, quiet: bool
) -> None:
    """Run some cases as ``study`` plans it, and show its table."""
    from efl.runs.directory import refuse_run_directory
    from efl.track.progress import run_with_progress

    refuse_run_directory(where)
    jobs = study.plan(cases, seeds, where, rounds)
    run_with_progress(jobs, workers, quiet=quiet)
    say(study.write(jobs, where))
    say(f"Table and runs: {where}")


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


@app.command()
def table3(
    scale: StudyScaleOption = "small",
    datasets: DatasetsOption = None,
    methods: MethodsOption = None,
    seeds: StudySeedsOption = None,
    trials: TrialsOption = None,
    set_: SetOption = None,
    out: OutOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """Methods on four data sets, tuned alike: accuracy, bytes, and time on slow links."""
    from efl.paper import table3 as table

    plan = table.study(scale, _named("datasets", datasets, table.datasets(scale)))
    plan = _restricted(plan, methods, seeds, trials, set_)
    _build_up(plan, scale, out, workers, quiet, lambda results, where: table.write(plan, results, where))


def _figure(name: str, what: str) -> None:
    """Make the command that draws a figure."""

    @app.command(name, help=what)
    def figure(
        scale: StudyScaleOption = "small",
        datasets: DatasetsOption = None,
        methods: MethodsOption = None,
        seeds: StudySeedsOption = None,
        trials: TrialsOption = None,
        set_: SetOption = None,
        out: OutOption = None,
        workers: WorkersOption = None,
        quiet: QuietOption = False,
    ) -> None:
        from efl.paper import figures

        make = figures.FIGURES[name]
        names = [setting.name.removeprefix("for ").partition(",")[0] for setting in make(scale).study.settings]
        drawn = make(scale, _named("datasets", datasets, list(dict.fromkeys(names))))
        drawn = replace(drawn, study=_restricted(drawn.study, methods, seeds, trials, set_))
        _build_up(drawn.study, scale, out, workers, quiet, lambda results, where: figures.write(drawn, results, where))


_figure("figure1", "Accuracy over rounds, clients alike and unlike: FedProx, SCAFFOLD, APFL and EFL.")
_figure("figure2", "What the elastic term brings: no elasticity against the best one.")
_figure("figure3", "Few clients per round: EFL against FedAvg.")


@app.command()
def published(
    table: Annotated[
        Literal["fedsmu", "pfllib"],
        typer.Argument(help="fedsmu: LeNet on CIFAR-100, global models; pfllib: a cnn on it, personalised models."),
    ],
    scale: StudyScaleOption = "small",
    methods: MethodsOption = None,
    seeds: StudySeedsOption = None,
    trials: TrialsOption = None,
    set_: SetOption = None,
    out: OutOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """Tables that others published, in their settings, their figures beside ours."""
    from efl.paper import published as tables

    plan = tables.table(table, scale)
    plan = replace(plan, study=_restricted(plan.study, methods, seeds, trials, set_))
    _build_up(plan.study, scale, out, workers, quiet, lambda results, where: tables.write(plan, results, where))


def _named(option: str, said: str | None, known: Sequence[str]) -> Sequence[str]:
    """The names chosen, in the order of the paper."""
    chosen = [name.strip() for name in said.split(",")] if said else list(known)
    for name in chosen:
        if name not in known:
            raise UserError(f"--{option}: unknown {name!r}; choose among {', '.join(known)}")
    return [name for name in known if name in chosen]


def _restricted(
    study: "Study", methods: str | None, seeds: int | None, trials: int | None, set_: list[str] | None
) -> "Study":
    """A study with some of its rows, other seeds and searches, and keys of its experiments set."""
    rows = _named("methods", methods, [method.name for method in study.methods])
    study = replace(study, methods=[method for method in study.methods if method.name in rows])
    settings = [setting.changed(set_ or []) for setting in study.settings]
    effort = replace(study.effort, trials=trials or study.effort.trials)
    return replace(study, settings=settings, seeds=seeds or study.seeds, effort=effort)


def _build_up(
    study: "Study",
    scale: str,
    out: Path | None,
    workers: int | None,
    quiet: bool,
    write: Callable[["Results", Path], str],
) -> None:
    """Make the runs that are missing of a study, and write its table and pictures."""
    from efl.paper.study import run
    from efl.runs.directory import RunDirectory, refuse_run_directory

    where = out or Path("runs") / f"{study.name}-{scale}"
    refuse_run_directory(where)
    try:
        where.mkdir(parents=True, exist_ok=True)
        with RunDirectory(where).in_use():
            results = run(study, where, workers, quiet=quiet, say=(lambda text: None) if quiet else say)
    except KeyboardInterrupt:
        say("Stopped. Go on with the same command")
        raise typer.Exit(130) from None
    say(write(results, where))
    say(f"Table, figures and results.jsonl: {where}")


def _judge(name: str, scale: str, out: Path | None, study: Callable[[Path], "Outcome"]) -> None:
    """Run a study of checks, say how each came out, and exit with 1 if one failed."""
    from efl.runs.directory import refuse_run_directory

    where = out or Path("runs") / f"{name}-{scale}"
    refuse_run_directory(where)
    where.mkdir(parents=True, exist_ok=True)
    outcome = study(where)
    for check in outcome.checks:
        say(str(check))
    say(f"Table and figures: {where}")
    if not outcome.passed:
        raise typer.Exit(1)
