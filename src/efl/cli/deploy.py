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


@app.command()
def server(
    app_: Annotated[Path, typer.Argument(metavar="APP", help="The app's folder.")] = Path(),
    supervise: Annotated[bool, typer.Option("--supervise", help="Start again what dies, until the run ends.")] = False,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    keys: Annotated[Path | None, typer.Option(help="Folder of ca.pem, server.pem and server.key.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No encryption, no keys: for trials.")] = False,
    address: Annotated[str, typer.Option(help="A name of this machine in the certificate.")] = "localhost",
    state: Annotated[Path, typer.Option(help="Where logs, Flower's database and the run go.")] = Path("server"),
) -> None:
    """Start the SuperLink and the app's run; go on with a run that was interrupted."""
    from efl.deploy.certificates import Certificates
    from efl.deploy.superlink import Server
    from efl.deploy.supervisor import Supervisor
    from efl.errors import UserError
    from efl.processes import terminates_by_interrupt

    if (keys is None) == (not insecure):
        raise UserError("say --keys DIR, with the certificates, or --insecure (docs/deploy.md makes some)")
    certificates = None if keys is None else Certificates.in_directory(keys)
    with terminates_by_interrupt(), Server(state.absolute(), certificates, port, host, address) as started:
        try:
            directory = Supervisor(started, app_, say, restarts=supervise).serve()
        except KeyboardInterrupt:
            say("Stopped; the same command goes on with the run.")
            raise typer.Exit(130) from None
    say(f"Finished: {directory}")


@app.command()
def systemd(
    directory: Annotated[Path, typer.Argument(help="Where to write the units.")] = Path(),
    app_: Annotated[Path, typer.Option("--app", help="The app's folder, on the server.")] = Path("/srv/efl/app"),
    keys: Annotated[Path, typer.Option(help="The folder of certificates and keys.")] = Path("/etc/efl/keys"),
    state: Annotated[Path, typer.Option(help="Where server and clients keep what must last.")] = Path("/var/lib/efl"),
    superlink: Annotated[str, typer.Option(help="How clients reach the server.")] = "fl.example.org:8000",
) -> None:
    """Write units for systemd: the supervised server, and a client that is started again."""
    from efl.deploy.systemd import write_units

    for path in write_units(directory, app_, keys, state, superlink):
        say(str(path))


@app.command("move-client")
def move_client(
    client: Annotated[int, typer.Argument(min=0, help="The client's number.")],
    key: Annotated[Path, typer.Argument(help="The public key that gets its place, as it was registered.")],
    run: Annotated[Path, typer.Option(help="The run directory.")] = Path("runs/flower"),
) -> None:
    """Give a client's place to another key; at once, also while the server runs."""
    from efl.deploy.places import move_client as move

    move(run, client, key)
    say(f"Client {client} of {run} is the node with {key}; any other is rejected.")
