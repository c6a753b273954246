"""efl deploy."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from efl.cli.options import OutOption, SetOption, console, plain_table, say

if TYPE_CHECKING:
    from efl.deploy.status import ClientStatus

app = typer.Typer(no_args_is_help=True, help="The same algorithms over a real network, on Flower.")

StateOption = Annotated[Path, typer.Option(help="Where logs, Flower's database and the run go.")]
SuperlinkOption = Annotated[str, typer.Option(metavar="HOST:PORT", help="How clients reach the server.")]


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="A new folder.")],
    clients: Annotated[int, typer.Option(min=1, help="How many clients there will be.")] = 4,
) -> None:
    """Write a Flower app to start from: your model and data go into federated/task.py."""
    from efl.deploy.template import write_app

    for path in write_app(directory, clients):
        say(str(path))
    say(f"Try it on this machine: efl deploy demo --app {directory}")


@app.command()
def demo(
    nodes: Annotated[
        int | None, typer.Option(min=1, help="SuperNodes, one client each; default: the app's, or 4.")
    ] = None,
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
    _check_installed()
    from efl.deploy.demo import clients_of, run_demo
    from efl.runs.directory import RunDirectory, new_directory
    from efl.settings import overrides_by_section
    from efl.track.report import write_report
    from efl.track.tables import summary_table

    count, overrides = nodes or clients_of(app_), overrides_by_section(set_ or [])
    sizes = {"federation": {"clients": count}, "training": {"cohort": count}}
    merged = {name: {**sizes.get(name, {}), **overrides.get(name, {})} for name in {*sizes, *overrides}}
    try:
        directory = run_demo(out or new_directory("flower-demo"), count, merged, say, secure=tls, app=app_)
    except KeyboardInterrupt:
        say("Stopped, and everything that was started with it.")
        raise typer.Exit(130) from None
    run = RunDirectory.open(directory)
    summary = run.read_summary()
    assert summary is not None
    console.print(summary_table(summary))
    say(f"Report: {write_report(run)}")


@app.command()
def keys(
    directory: Annotated[Path, typer.Argument(help="Where to write them.")] = Path("keys"),
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address of the server; repeatable.", show_default=False)
    ] = None,
    client: Annotated[
        list[int] | None, typer.Option(min=0, help="A client's number: make its key; repeatable.", show_default=False)
    ] = None,
) -> None:
    """Make the server's certificates, or, with --client, the keys of clients; with --host as well, both."""
    _check_installed()
    from efl.deploy.keys import write_certificates, write_client_keys

    made = [] if client and not host else write_certificates(directory, host or [])
    for path in [*made, *write_client_keys(directory, client or [])]:
        say(str(path))


@app.command()
def server(
    app_: Annotated[Path, typer.Argument(metavar="APP", help="The app's folder.")] = Path(),
    supervise: Annotated[bool, typer.Option("--supervise", help="Start again what dies, until the run ends.")] = False,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    keys: Annotated[Path | None, typer.Option(help="Folder of ca.pem, server.pem and server.key.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No encryption, no keys: for trials.")] = False,
    address: Annotated[str, typer.Option(help="A name of this machine in the certificate.")] = "localhost",
    state: StateOption = Path("server"),
) -> None:
    """Start the SuperLink and the app's run; go on with a run that was interrupted."""
    _check_installed()
    from efl.deploy.certificates import Certificates
    from efl.deploy.superlink import Server
    from efl.deploy.supervisor import Supervisor
    from efl.errors import UserError
    from efl.processes import terminates_by_interrupt

    if (keys is None) == (not insecure):
        raise UserError("say --keys DIR, with the certificates (efl deploy keys makes some), or --insecure")
    certificates = None if keys is None else Certificates.in_directory(keys)
    with terminates_by_interrupt(), Server(state.absolute(), certificates, port, host, address) as started:
        try:
            directory = Supervisor(started, app_, say, restarts=supervise).serve()
        except KeyboardInterrupt:
            say("Stopped; the same command goes on with the run.")
            raise typer.Exit(130) from None
    say(f"Finished: {directory}")


@app.command()
def register(
    key: Annotated[list[Path], typer.Argument(help="Public keys, named client-K.pub.")],
    state: StateOption = Path("server"),
) -> None:
    """Let nodes with these keys in: on the server, while it runs."""
    _check_installed()
    from efl.deploy.registration import register_key

    for path in key:
        say(f"{path}: {'registered' if register_key(state, path) else 'was registered before'} as {path.stem}")


@app.command()
def client(
    number: Annotated[int, typer.Argument(metavar="CLIENT", min=0, help="The client's number.")],
    superlink: SuperlinkOption,
    keys: Annotated[Path | None, typer.Option(help="Folder of ca.pem and the client's key.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No encryption, no key: for trials.")] = False,
    state: Annotated[
        Path | None, typer.Option(help="Where it keeps its state; default: ~/.local/state/efl.", show_default=False)
    ] = None,
    config: Annotated[str, typer.Option(help="More for the app's node_config, such as \"data='/data'\".")] = "",
) -> None:
    """Take part in a run as a client, until stopped; have a service manager start it again if it ends."""
    _check_installed()
    from efl.deploy.client import ClientNode
    from efl.errors import UserError

    if (keys is None) == (not insecure):
        raise UserError(f"say --keys DIR, with ca.pem and client-{number}, or --insecure")
    ClientNode.with_keys(number, superlink, keys, state, config).run()


@app.command()
def status(run: Annotated[Path, typer.Argument(help="The run directory.")] = Path("server/runs/flower")) -> None:
    """Show who is connected, who is late, the last round, and bytes, from the run directory."""
    from efl.deploy.status import network_status
    from efl.track.text import bytes_text, duration

    found = network_status(run)
    done, of = found.rounds
    doing = {"wait": "waiting for clients", "train": f"in round {done + 1}", "evaluate": "evaluating"}.get(found.doing)
    say(f"{run}: {found.state}, {done} of {of} rounds" + (f", {doing} for {duration(found.seconds)}" if doing else ""))
    say(f"{bytes_text(found.bytes_up)} up, {bytes_text(found.bytes_down)} down; late: {found.late or 'nobody'}")
    table = plain_table("client", "connection", "this round", "last update", "updates", "last rejected for")
    for one in found.clients:
        table.add_row(*_client_row(one))
    console.print(table)


def _client_row(one: "ClientStatus") -> list[str]:
    """A client as a line of the table; rounds are counted from 1, as in the server's log."""
    last = f"round {one.last + 1}" if one.last >= 0 else ""
    now = f"{one.now}, {one.seconds:.0f} s" if one.now in ("late", "working") else one.now
    return [str(one.client), one.connection, now, last, f"{one.updates}/{one.sampled}", one.rejected]


@app.command()
def systemd(
    directory: Annotated[Path, typer.Argument(help="Where to write the units.")] = Path(),
    app_: Annotated[Path, typer.Option("--app", help="The app's folder, on the server.")] = Path("/srv/efl/app"),
    keys: Annotated[Path, typer.Option(help="The folder of certificates and keys.")] = Path("/etc/efl/keys"),
    state: Annotated[Path, typer.Option(help="Where server and clients keep what must last.")] = Path("/var/lib/efl"),
    superlink: SuperlinkOption = "fl.example.org:8000",
) -> None:
    """Write units for systemd: the supervised server, and a client that is started again."""
    _check_installed()
    from efl.deploy.systemd import write_units

    for path in write_units(directory, app_, keys, state, superlink):
        say(str(path))


@app.command()
def compose(
    directory: Annotated[Path, typer.Argument(help="The folder with the app and the keys.")] = Path(),
    app_: Annotated[str, typer.Option("--app", help="The app's folder, in it.")] = "app",
    keys: Annotated[str, typer.Option(help="The folder of certificates and keys, in it.")] = "keys",
    clients: Annotated[
        int | None, typer.Option(min=1, help="How many; default: as many as the app has.", show_default=False)
    ] = None,
    superlink: SuperlinkOption = "fl.example.org:8000",
) -> None:
    """Write compose.yaml and a Dockerfile: an image for the server, one for clients."""
    _check_installed()
    from efl.deploy.containers import write_containers
    from efl.deploy.demo import clients_of

    for path in write_containers(directory, app_, keys, clients or clients_of(directory / app_), superlink):
        say(str(path))


@app.command("move-client")
def move_client(
    client: Annotated[int, typer.Argument(min=0, help="The client's number.")],
    key: Annotated[Path, typer.Argument(help="The public key that gets its place, as it was registered.")],
    run: Annotated[Path, typer.Option(help="The run directory.")] = Path("server/runs/flower"),
) -> None:
    """Give a client's place to another key; at once, also while the server runs."""
    _check_installed()
    from efl.deploy.places import move_client as move

    move(run, client, key)
    say(f"Client {client} of {run} is the node with {key}; any other is rejected.")


def _check_installed() -> None:
    from efl.deploy.installed import check_installed

    check_installed()
