"""efl deploy."""

from pathlib import Path
from typing import Annotated

import typer

from efl.cli.options import OutOption, SetOption, console, say

app = typer.Typer(no_args_is_help=True, help="The same algorithms over a real network, on Flower.")


@app.command()
def init(directory: Annotated[Path, typer.Argument(help="A new folder.")]) -> None:
    """Write a Flower app to start from: your model and data go into federated/task.py."""
    from efl.deploy.template import write_app

    for path in write_app(directory):
        say(str(path))
    say(f"Try it on this machine: efl deploy demo --app {directory}")


@app.command()
def demo(
    nodes: Annotated[int, typer.Option(min=1, help="SuperNodes, one client each.")] = 4,
    tls: Annotated[
        bool, typer.Option("--tls/--insecure", help="Encrypt, and let only nodes with a registered key in.")
    ] = True,
    app_: Annotated[
        Path | None, typer.Option("--app", help="An app's folder; default: the template's.", show_default=False)
    ] = None,
    set_: SetOption = None,
    out: OutOption = None,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, run an app, stop everything."""
    from efl.deploy.demo import run_demo
    from efl.runs.directory import RunDirectory, new_directory
    from efl.settings import overrides_by_section
    from efl.track.report import write_report
    from efl.track.tables import summary_table

    overrides = overrides_by_section(set_ or [])
    sizes = {"federation": {"clients": nodes}, "training": {"cohort": nodes}}
    merged = {name: {**sizes.get(name, {}), **overrides.get(name, {})} for name in {*sizes, *overrides}}
    try:
        directory = run_demo(out or new_directory("flower-demo"), nodes, merged, say, secure=tls, app=app_)
    except KeyboardInterrupt:
        say("Stopped, and everything that was started with it.")
        raise typer.Exit(130) from None
    run = RunDirectory.open(directory)
    summary = run.read_summary()
    assert summary is not None
    console.print(summary_table(summary))
    say(f"Report: {write_report(run)}")
