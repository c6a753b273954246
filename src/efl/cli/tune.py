"""efl tune."""

from __future__ import annotations

from typing import Annotated

import typer

from efl.cli.options import (
    DEMO,
    FileArgument,
    OutOption,
    PluginOption,
    QuietOption,
    SetOption,
    WorkersOption,
    console,
    say,
)


def tune(
    file: FileArgument = None,
    algorithms: Annotated[
        str, typer.Option(help="Names, separated by commas; name:preset for a preset.")
    ] = "efl,fedavg,fedprox",
    trials: Annotated[int, typer.Option(min=1, help="Budget of each algorithm, in complete runs.")] = 12,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of a run; default: the experiment's.")] = None,
    space: Annotated[
        list[str] | None,
        typer.Option("--space", metavar="KEY=LOW:HIGH", help="Search here, such as training.learning_rate=0.01:1."),
    ] = None,
    confirmations: Annotated[int, typer.Option(min=0, help="Further seeds for the best few trials.")] = 2,
    set_: SetOption = None,
    out: OutOption = None,
    plugin: PluginOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """Search hyper-parameters on validation data, the same budget for every algorithm. Asked again, it goes on."""
    from efl.config import load_experiment
    from efl.runs.comparison import named
    from efl.runs.directory import RunDirectory, new_directory, refuse_run_directory
    from efl.tune.display import search_progress
    from efl.tune.outcome import write
    from efl.tune.search import Effort
    from efl.tune.tuner import searches
    from efl.tune.tuner import tune as make_runs

    experiment = load_experiment(file or DEMO, set_ or [], plugin or [])
    where = out or new_directory(f"tune-{experiment.federation.dataset}")
    refuse_run_directory(where)
    effort = Effort(trials, rounds, confirmations=confirmations)
    found = searches(named(algorithms), experiment, space or [], effort, where)
    try:
        with RunDirectory(where).in_use(), search_progress(console, found, quiet=quiet) as note:
            make_runs(found, workers, note)
    except KeyboardInterrupt:
        say(f"Stopped. Go on with the same command and --out {where}")
        raise typer.Exit(130) from None
    say(write(found, where))
    say(f"Best experiments, table and picture: {where}")
