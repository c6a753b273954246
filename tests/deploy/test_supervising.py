"""Supervision of a stand-in server: what dies is started again, what cannot live is reported."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from efl.cli import app as command
from efl.config import parse
from efl.deploy import supervisor
from efl.deploy.certificates import make_node_key
from efl.deploy.demo import prepare_app
from efl.deploy.places import public_key
from efl.deploy.superlink import RUN, SUPERLINK, Server
from efl.deploy.supervisor import Supervisor
from efl.errors import UserError
from efl.runs.directory import RunDirectory
from efl.server.registry import Node, Registry

# A server's app of a few lines: it holds the run's lock, and one time in two dies before it is done.
APP = """
import json, os, sys, time
from pathlib import Path
from efl.runs.directory import RunDirectory
run = RunDirectory.open(Path(sys.argv[1]))
with run.in_use(5.0):
    starts = len(run.metrics.read_text().splitlines()) if run.metrics.exists() else 0
    with run.metrics.open("a") as file:
        file.write("{}\\n")
    print("efl: round", starts + 1, flush=True)
    time.sleep(0.3)
    if starts + 1 < int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    run.summary.write_text("{}")
"""


class StandIn(Server):
    """A server without Flower: the SuperLink sleeps, the app is `APP`, which has so many lives."""

    def start_superlink(self):
        self.links = getattr(self, "links", 0) + 1
        self._start(SUPERLINK, "python", "-c", "import time; time.sleep(600)")

    def run_app(self, app):
        run = RunDirectory(self.directory / "run")
        if not run.config.exists():
            RunDirectory.create(run.path, parse({}))
        process = self._start(RUN, "python", "-c", APP, str(run.path), str(self.lives), piped=True)
        for line in process.stdout:
            yield line.decode().strip().removeprefix("efl: ")
        process.wait()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(supervisor, "LOOK_AGAIN", 0.05)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", 0.1)


def stand_in(tmp_path, lives):
    app = prepare_app(tmp_path / "app", tmp_path / "state" / "run", 1, {})
    server = StandIn(tmp_path / "state", None, 1)
    server.lives = lives
    return server, app


def test_an_app_that_is_killed_is_started_again_until_it_is_done(tmp_path, quick):
    server, app = stand_in(tmp_path, lives=3)
    lines = []
    with server:
        assert Supervisor(server, app, lines.append).serve() == tmp_path / "state" / "run"
    assert [line for line in lines if line.startswith("round")] == ["round 1", "round 2", "round 3"]
    assert sum(line.startswith("the server's app died and is started again") for line in lines) == 2
    assert all(process.poll() is not None for process in server.processes.values())


def test_a_superlink_that_dies_is_started_again_and_the_app_with_it(tmp_path, quick):
    server, app = stand_in(tmp_path, lives=2)
    lines = []

    def say(line):
        lines.append(line)
        if line == "round 1":
            os.kill(server.processes[SUPERLINK].pid, signal.SIGKILL)

    with server:
        Supervisor(server, app, say).serve()
    assert server.links == 2
    assert sum(line.startswith("the SuperLink died and is started again") for line in lines) == 1
    assert "round 2" in lines


def test_without_supervision_a_death_is_an_error(tmp_path, quick):
    server, app = stand_in(tmp_path, lives=3)
    with server, pytest.raises(UserError, match=r"the server's app died; .*--supervise"):
        Supervisor(server, app, print, restarts=False).serve()


def test_what_only_dies_is_given_up(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(supervisor, "MOST_DEATHS", 3)
    server, app = stand_in(tmp_path, lives=3)
    server.run_app = lambda app: iter(())
    with server, pytest.raises(UserError, match="4 deaths without a round in between"):
        Supervisor(server, app, print).serve()


def test_a_finished_run_is_not_started_again(tmp_path):
    server, app = stand_in(tmp_path, lives=1)
    (tmp_path / "state" / "run").mkdir(parents=True)
    (tmp_path / "state" / "run" / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="finished"):
        Supervisor(server, app, print)


def test_what_the_command_needs_is_said_in_a_line(tmp_path):
    app = prepare_app(tmp_path / "app", tmp_path / "run", 1, {})
    for arguments, said in (
        ([str(app)], "--keys DIR, with the certificates (efl deploy keys makes some), or --insecure"),
        ([str(app), "--keys", str(tmp_path)], "ca.pem: no such file"),
        ([str(tmp_path), "--insecure", "--state", str(tmp_path / "s")], "is no app"),
    ):
        result = CliRunner().invoke(command, ["deploy", "server", *arguments])
        assert isinstance(result.exception, UserError)
        assert said in str(result.exception)


def test_units_for_systemd_are_valid(tmp_path):
    arguments = ["--app", "/srv/app", "--keys", "/etc/keys"]
    result = CliRunner().invoke(command, ["deploy", "systemd", str(tmp_path), *arguments])
    assert result.exit_code == 0, result.output
    server, client = tmp_path / "efl-server.service", tmp_path / "efl-client@.service"
    assert "deploy server /srv/app --supervise" in server.read_text()
    assert "deploy client %i --superlink fl.example.org:8000 --keys /etc/keys" in client.read_text()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    for unit in (server, client):
        text = unit.read_text()
        unit.write_text(text.replace(text[text.index("ExecStart=") + 10 :].split()[0], sys.executable))
        checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
        assert not [line for line in checked.stderr.splitlines() if unit.name.split("@")[0] in line], checked.stderr


@pytest.mark.parametrize("arguments", [["--superlink", "nowhere"], ["--app", "/srv/my app"]])
def test_units_that_systemd_would_misread_are_not_written(tmp_path, arguments):
    result = CliRunner().invoke(command, ["deploy", "systemd", str(tmp_path), *arguments])
    assert isinstance(result.exception, UserError)
    assert not list(tmp_path.iterdir())


def run_with_clients(tmp_path):
    run = RunDirectory.create(tmp_path / "run", parse({"federation": {"clients": 3}, "training": {"cohort": 3}}))
    keys = [public_key(make_node_key(tmp_path, name)[1]) for name in ("first", "second")]
    registry = Registry(3, 3, run.path / "clients.json")
    nodes = [Node(number, key, f"client-{number}") for number, key in enumerate(keys)]
    registry.meet(nodes)
    for number, node in enumerate(nodes):
        registry.claim(node, number, 10)
    return run.path, nodes


def test_a_moved_place_is_the_new_keys_alone_and_stays_so(tmp_path):
    run, nodes = run_with_clients(tmp_path)
    _, public = make_node_key(tmp_path, "new")
    result = CliRunner().invoke(command, ["deploy", "move-client", "0", str(public), "--run", str(run)])
    assert result.exit_code == 0, result.output
    old, new = nodes[0], Node(7, public_key(public), "client-0")
    book = Registry(3, 3, run / "clients.json")
    assert book.meet([old, new]) == [old, new]
    assert book.node(0) is None
    with pytest.raises(Exception, match="another key"):
        book.claim(old, 0, 10)
    book.claim(new, 0, 20)
    assert (book.node(0), book.sizes[0]) == (new, 20)
    again = Registry(3, 3, run / "clients.json")
    assert again.meet([old, new]) == [old]
    with pytest.raises(Exception, match="another key"):
        again.claim(old, 0, 10)
    assert json.loads((run / "clients.json").read_text())["clients"]["0"]["key"] == new.key


def test_moves_that_make_no_sense_are_refused(tmp_path):
    run, _ = run_with_clients(tmp_path)
    (tmp_path / "no-key").write_text("ssh-nothing")
    for client, key, said in (
        ("3", "second.pub", "there is no client 3"),
        ("0", "second.pub", "is the key of client 1"),
        ("0", "first.pub", "is the key of client 0 already"),
        ("0", "no-key", "no public key"),
        ("0", "nowhere", "no public key"),
    ):
        result = CliRunner().invoke(command, ["deploy", "move-client", client, str(tmp_path / key), "--run", str(run)])
        assert isinstance(result.exception, UserError)
        assert said in str(result.exception)
