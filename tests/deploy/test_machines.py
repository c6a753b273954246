"""What the commands for real machines write, start and show, without Flower's own processes."""

import json
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("flwr")

import yaml
from cryptography import x509
from typer.testing import CliRunner

from efl.cli import app as command
from efl.config import parse
from efl.deploy import client as client_module
from efl.deploy import registration
from efl.deploy.client import ClientNode
from efl.deploy.keys import write_client_keys
from efl.deploy.status import network_status
from efl.deploy.superlink import Server
from efl.errors import UserError
from efl.flower.activity import NAME, ActivityFile, read_activity
from efl.runs.directory import RunDirectory
from efl.server.registry import Node, Registry


def run(*arguments):
    return CliRunner().invoke(command, ["deploy", *map(str, arguments)])


def test_the_servers_certificate_is_also_for_the_server_itself(tmp_path):
    result = run("keys", tmp_path, "--host", "fl.example.org", "--host", "10.0.0.7", "--client", 0, "--client", 2)
    assert result.exit_code == 0, result.output
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1"]
    assert {path.name for path in tmp_path.glob("client-*")} == {"client-0", "client-0.pub", "client-2", "client-2.pub"}


def test_a_client_makes_its_key_alone_and_no_key_is_replaced(tmp_path):
    assert run("keys", tmp_path, "--client", 1).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"client-1", "client-1.pub"}
    before = (tmp_path / "client-1").read_bytes()
    again = run("keys", tmp_path, "--client", 1)
    assert isinstance(again.exception, UserError)
    assert "is there already" in str(again.exception)
    assert (tmp_path / "client-1").read_bytes() == before
    assert run("keys", tmp_path).exit_code == 0
    assert isinstance(run("keys", tmp_path).exception, UserError)


@pytest.mark.parametrize("package", ["flwr", "cryptography"])
def test_what_a_plain_installation_lacks_is_said_in_a_line(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    for arguments in (("keys", tmp_path), ("demo",), ("server", tmp_path, "--insecure")):
        result = run(*arguments)
        assert isinstance(result.exception, UserError)
        assert str(result.exception) == f"{package} is not installed; run: pip install 'elastic-fl[flower]'"


def test_nodes_of_one_machine_have_ports_of_their_own_and_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_client_keys(tmp_path / "keys", [0, 1])
    (tmp_path / "keys" / "ca.pem").write_text("")
    started = []
    monkeypatch.setattr(client_module.os, "execve", lambda *arguments: started.append(arguments))
    for client in (0, 1):
        arguments = ("--superlink", "fl.example.org:8000", "--keys", "keys", "--state", "state")
        result = run("client", client, *arguments, "--config", "data='/data'")
        assert result.exit_code == 0, result.output
    first, second = (words for _, words, _ in started)
    assert first[first.index("--port") + 1] != second[second.index("--port") + 1]
    config = f"partition-id=0 state-dir='{tmp_path / 'state'}' data='/data'"
    assert first[first.index("--node-config") + 1] == config
    assert first[first.index("--root-certificates") + 1] == str(tmp_path / "keys" / "ca.pem")
    assert second[second.index("--auth-supernode-private-key") + 1] == str(tmp_path / "keys" / "client-1")
    assert started[0][2]["FLWR_HOME"] == str(tmp_path / "state" / "flwr")
    assert (tmp_path / "state" / "flwr").is_dir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--superlink", "fl.example.org"], "is no address"),
        (["--superlink", "fl.example.org:99999"], "is no address"),
        (["--superlink", "a:1", "--keys", "."], "copy it from the server"),
        (["--superlink", "a:1"], "say --keys DIR"),
        (["--superlink", "a:1", "--keys", ".", "--insecure"], "say --keys DIR"),
    ],
)
def test_what_a_client_needs_is_said_in_a_line(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    result = run("client", 0, *([*arguments, "--insecure"] if said == "is no address" else arguments))
    assert isinstance(result.exception, UserError)
    assert said in str(result.exception)


def test_a_state_that_flower_cannot_be_given_is_refused(tmp_path):
    with pytest.raises(UserError, match="no path with a quote"):
        _ = ClientNode(0, "a:1", tmp_path / "it's").command


def test_keys_are_registered_by_their_files_names(tmp_path, monkeypatch):
    write_client_keys(tmp_path / "keys", [0, 1])
    Server(tmp_path / "server", None, 1)  # writes what commands need to reach it
    called, key = [], tmp_path / "keys" / "client-0.pub"

    def flwr(directory, *arguments):
        called.append((directory, arguments))
        if "client-1.pub" in arguments[2]:
            raise UserError("flwr supernode register failed: Public key already in use.")
        return ""

    monkeypatch.setattr(registration, "flwr", flwr)
    result = run("register", key, tmp_path / "keys" / "client-1.pub", "--state", tmp_path / "server")
    assert result.exit_code == 0, result.output
    words = result.output.replace("\n", " ")
    assert "registered as client-0" in words
    assert "was registered before as client-1" in words
    assert called[0] == (tmp_path / "server", ("supernode", "register", str(key), "efl", "--name", "client-0"))


def test_only_a_clients_public_key_is_registered_with_a_server_that_is_there(tmp_path):
    write_client_keys(tmp_path, [0])
    (tmp_path / "mine.pub").write_bytes((tmp_path / "client-0.pub").read_bytes())
    (tmp_path / "client-1.pub").write_text("nothing")
    for name, said in (
        ("mine.pub", "name it client-K.pub"),
        ("client-0", "name it client-K.pub"),
        ("client-1.pub", "no public key"),
        ("client-0.pub", "no server keeps its files there"),
    ):
        result = run("register", tmp_path / name, "--state", tmp_path / "nowhere")
        assert said in str(result.exception)


# Containers


def containers(tmp_path, *arguments):
    assert run("init", tmp_path / "app", "--clients", 3).exit_code == 0
    return run("compose", tmp_path, "--superlink", "fl.example.org:8123", *arguments)


def test_a_compose_file_has_the_server_and_every_client(tmp_path):
    result = containers(tmp_path)
    assert result.exit_code == 0, result.output
    table = yaml.safe_load((tmp_path / "compose.yaml").read_text())
    services = table["services"]
    assert list(services) == ["server", "client-0", "client-1", "client-2"]
    assert {service["build"]["target"] for service in services.values()} == {"server", "client"}
    assert {service["image"] for service in services.values()} == {"efl-server", "efl-client"}
    assert services["server"]["ports"] == ["8123:8123"]
    assert services["client-1"]["command"] == ["1", "--superlink", "${EFL_SUPERLINK:-server:8123}"]
    mounted = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert mounted == {"./keys", "./keys/ca.pem", *table["volumes"], *(f"./keys/client-{k}" for k in range(3))}
    assert "./keys" not in {volume.split(":")[0] for volume in services["client-0"]["volumes"]}


def test_the_images_start_commands_that_there_are(tmp_path):
    assert containers(tmp_path).exit_code == 0
    lines = (tmp_path / "Dockerfile").read_text().splitlines()
    stages = [line.split()[-1] for line in lines if line.startswith("FROM ")]
    assert stages == ["base", "server", "client"]
    assert "COPY --chown=efl app /app" in lines
    assert {line.split()[0] for line in lines if line and not line.startswith("#")} <= {
        "FROM", "ARG", "WORKDIR", "RUN", "USER", "VOLUME", "STOPSIGNAL", "COPY", "EXPOSE", "ENTRYPOINT",
    }  # fmt: skip
    for line in lines:
        if line.startswith("ENTRYPOINT "):
            words = json.loads(line.removeprefix("ENTRYPOINT "))
            helped = CliRunner().invoke(command, [*words[1:3], "--help"], terminal_width=200)
            assert words[0] == "efl"
            assert all(word in helped.output for word in words if word.startswith("--"))
    assert "keys" not in (tmp_path / ".dockerignore").read_text().split("\n", 1)[1]


def compose_command():
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) is not None:
            found = subprocess.run([*words, "version"], capture_output=True, check=False)
            if found.returncode == 0:
                return words
    return None


def test_compose_accepts_the_file(tmp_path):
    words = compose_command()
    if words is None:
        pytest.skip("Compose is not here")
    assert containers(tmp_path).exit_code == 0
    checked = subprocess.run([*words, "config"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "server:8123" in checked.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--app", "../app"], "name of a folder"), (["--app", "other"], "is no app"), (["--keys", "a b"], "name of a")],
)
def test_containers_are_built_from_one_folder(tmp_path, arguments, said):
    result = containers(tmp_path, *arguments)
    assert isinstance(result.exception, UserError)
    assert said in str(result.exception)
    assert not (tmp_path / "compose.yaml").exists()


def test_what_was_changed_is_not_written_over(tmp_path):
    (tmp_path / "Dockerfile").write_text("mine")
    result = containers(tmp_path)
    assert isinstance(result.exception, UserError)
    assert (tmp_path / "Dockerfile").read_text() == "mine"
    assert not (tmp_path / "compose.yaml").exists()


# Status


def record(round_, clients, aggregated, rejected=None):
    entry = {"round": round_, "eta": 0.1, "train_loss": 1.0, "bytes_up": 1000, "bytes_down": 2000, "bytes": {}}
    entry |= {"clients": dict.fromkeys(map(str, clients), 5), "aggregated": aggregated, "seconds": 1.0}
    return json.dumps(entry | ({"rejected": rejected} if rejected else {})) + "\n"


def deployment(tmp_path):
    """A run of four clients, of whom three came, in its third round for 50 seconds."""
    settings = {"federation": {"clients": 4}, "training": {"cohort": 3, "rounds": 9}}
    directory = RunDirectory.create(tmp_path / "run", parse({**settings, "network": {"deadline": 60.0}}))
    registry = Registry(4, 3, directory.path / "clients.json")
    nodes = [Node(number, f"key {number}", f"client-{number}") for number in range(3)]
    registry.meet(nodes)
    for number, node in enumerate(nodes):
        registry.claim(node, number, 10)
    registry.open_round(2)
    rejected = {"2": "client 2 sends a NaN"}
    directory.metrics.write_text(record(0, [0, 1, 2], [0, 1, 2]) + record(1, [0, 1, 2], [0], rejected))
    times = iter([900.0, 950.0])
    note = ActivityFile(directory.path, lambda: next(times))
    note("wait", [0, 1])
    note("train", [0, 1], [0, 1, 2], replied=(0,))
    return directory


def test_status_says_who_is_connected_who_is_late_and_what_was_sent(tmp_path):
    directory = deployment(tmp_path)
    with directory.in_use():
        early, late = (network_status(directory.path, now) for now in (960.0, 1000.0))
    assert (late.state, late.rounds, late.doing, late.seconds) == ("running", (2, 9), "train", 50.0)
    assert (late.bytes_up, late.bytes_down) == (2000, 4000)
    assert [one.connection for one in late.clients] == ["online", "online", "offline", "never came"]
    assert [one.now for one in late.clients] == ["replied", "late", "offline", ""]
    assert [one.now for one in early.clients] == ["replied", "working", "offline", ""]
    assert (early.late, late.late) == ([], [1])
    assert [(one.updates, one.sampled, one.last) for one in late.clients] == [
        (2, 2, 1),
        (1, 2, 0),
        (1, 2, 0),
        (0, 0, -1),
    ]
    assert late.clients[2].rejected == "client 2 sends a NaN"


def test_of_a_server_that_is_gone_nothing_is_said_to_be_going_on(tmp_path):
    directory = deployment(tmp_path)
    found = network_status(directory.path)
    assert (found.state, found.doing, found.late) == ("stopped", "", [])
    assert [one.connection for one in found.clients] == ["unknown", "unknown", "unknown", "never came"]
    shown = run("status", directory.path)
    assert shown.exit_code == 0, shown.output
    assert "stopped, 2 of 9 rounds" in shown.output.replace("\n", " ")


def test_a_damaged_activity_is_refused_in_a_line_and_stops_no_server(tmp_path):
    path = tmp_path / NAME
    note = ActivityFile(tmp_path)
    for damaged in (
        b"",
        b"{",
        b"[]",
        b'{"doing": "dance"}',
        b"\xff",
        b'{"doing": "wait", "online": [-1]}',
        b"[" * 9999,
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="damaged"):
            read_activity(tmp_path)
    note("train", [1], [1], rejected={1: "x" * 1000})
    found = read_activity(tmp_path)
    assert (found.doing, found.online, found.awaited, len(found.rejected[1])) == ("train", (1,), [], 300)
    path.unlink()
    path.mkdir()
    note("wait", [])
    with pytest.raises(UserError, match="damaged"):
        read_activity(tmp_path)
