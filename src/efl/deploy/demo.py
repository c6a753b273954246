"""`efl deploy demo`: an app on a network of processes on this machine, from keys to run directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from efl.deploy.network import LocalNetwork
from efl.deploy.template import CLIENTS, example_partition, write_app
from efl.errors import UserError
from efl.processes import terminates_by_interrupt
from efl.settings import read_toml


def run_demo(
    out: Path,
    nodes: int,
    overrides: Mapping[str, Mapping[str, Any]],
    say: Callable[[str], None],
    *,
    secure: bool = True,
    app: Path | None = None,
) -> Path:
    """Run an app with so many nodes; the run directory. Whatever was started is stopped, also after an error."""
    out = out.absolute()
    if (out / "summary.json").exists():
        raise UserError(f"{out} holds a run that is finished; choose another --out")
    work = Path(tempfile.mkdtemp(prefix="efl-deploy-"))
    try:
        folder = prepare_app(work / "app", out, nodes, overrides, app)
        with terminates_by_interrupt(), LocalNetwork(work, secure) as network:
            say(f"SuperLink on port {network.port}, {'TLS, every node with a key' if secure else 'nothing encrypted'}")
            network.start_superlink()
            if secure:
                network.register(*range(nodes))
            for client in range(nodes):
                network.start_node(client)
            for line in network.run_app(folder):
                say(line)
            up, down = network.traffic()
            say(f"Flower counted {up:,} B up, {down:,} B down; docs/deploy.md says what it counts besides ours")
        if not (out / "summary.json").exists():
            raise UserError(f"the run did not finish; the logs are in {work}")
    except BaseException:
        say(f"Logs: {work}")
        raise
    shutil.rmtree(work, ignore_errors=True)
    return out


def prepare_app(
    folder: Path, out: Path, nodes: int, overrides: Mapping[str, Mapping[str, Any]], app: Path | None = None
) -> Path:
    """A copy of ``app``, or of the template, whose configuration is for this network."""
    if app is None:
        write_app(folder, nodes)
    elif not (app / "pyproject.toml").is_file():
        raise UserError(f"{app} is no app: it has no pyproject.toml; make one with: efl deploy init {app}")
    else:
        shutil.copytree(app, folder, ignore=shutil.ignore_patterns(".*", "runs", "__pycache__"))
    project = folder / "pyproject.toml"
    table = read_toml(project)
    config = _config(project, table)
    federation = config.setdefault("federation", {})
    if federation.get("partition") == example_partition(_clients(federation)):  # the example's data, as they were
        federation["partition"] = example_partition(nodes)
    for section, values in overrides.items():
        config.setdefault(section, {}).update(values)
    federation.setdefault("clients", nodes)
    config.setdefault("network", {})["directory"] = str(out)
    project.write_text(tomli_w.dumps(table))
    return folder


def clients_of(app: Path | None) -> int:
    """For how many clients an app is, as its configuration says."""
    if app is None or not (app / "pyproject.toml").is_file():
        return CLIENTS
    project = app / "pyproject.toml"
    return _clients(_config(project, read_toml(project)).get("federation", {}))


def _clients(federation: Mapping[str, Any]) -> int:
    clients = federation.get("clients", CLIENTS)
    return clients if isinstance(clients, int) and clients > 0 else CLIENTS


def _config(project: Path, table: dict[str, Any]) -> dict[str, Any]:
    """The app's configuration in its pyproject.toml, to be read or changed."""
    try:
        config: dict[str, Any] = table["tool"]["flwr"]["app"].setdefault("config", {})
    except KeyError:
        raise UserError(f"{project} is of no Flower app: it has no [tool.flwr.app]") from None
    return config
