"""Apps, keys and processes of a network on this machine, without Flower's own processes."""

import os
import socket
import stat
import time

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.config import flatten_dict
from typer.testing import CliRunner

from efl.cli import app as command
from efl.deploy.certificates import make_certificates, make_node_key
from efl.deploy.demo import prepare_app, run_demo
from efl.deploy.network import LocalNetwork, free_port
from efl.deploy.superlink import SUPERLINK
from efl.deploy.template import write_app
from efl.errors import UserError, WireError
from efl.federation import load
from efl.flower.config import experiment_of, fleet_of
from efl.server.registry import Node, Registry
from efl.settings import read_toml


def config_of(folder):
    return flatten_dict(read_toml(folder / "pyproject.toml")["tool"]["flwr"]["app"]["config"])


def test_the_template_is_an_app_whose_experiment_is_valid(tmp_path):
    result = CliRunner().invoke(command, ["deploy", "init", str(tmp_path / "app")])
    assert result.exit_code == 0, result.output
    experiment = experiment_of(config_of(tmp_path / "app"))
    assert experiment.training.cohort == experiment.federation.clients == 4
    assert fleet_of(experiment).on_departure == "keep"
    for path in (tmp_path / "app" / "federated").glob("*.py"):
        compile(path.read_text(), path.name, "exec")


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(UserError, match="not empty"):
        write_app(tmp_path)


def test_a_demonstration_does_not_pass_off_an_old_run_as_its_own(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="finished; choose another --out"):
        run_demo(tmp_path, 1, {}, print)


def test_an_app_is_copied_and_fitted_to_the_network(tmp_path):
    write_app(tmp_path / "app")
    (tmp_path / "app" / "federated" / "extra.py").write_text("")
    copy = prepare_app(tmp_path / "copy", tmp_path / "out", 3, {"training": {"rounds": 7}}, tmp_path / "app")
    assert (copy / "federated" / "extra.py").exists()
    assert config_of(copy)["training.rounds"] == 7
    assert config_of(copy)["network.directory"] == str(tmp_path / "out")
    with pytest.raises(UserError, match="no app"):
        prepare_app(tmp_path / "other", tmp_path / "out", 3, {}, tmp_path)


@pytest.mark.parametrize(
    ("nodes", "partition"), [(1, "classes:10"), (2, "classes:5"), (3, "classes:4"), (4, "classes:3")]
)
def test_few_nodes_hold_all_digits_of_the_example_between_them(tmp_path, nodes, partition):
    folder = prepare_app(tmp_path / "app", tmp_path / "out", nodes, {})
    assert config_of(folder)["federation.partition"] == partition
    load("digits", nodes, partition)


def test_the_servers_certificate_is_signed_by_the_authority_and_names_the_host(tmp_path):
    made = make_certificates(tmp_path, ("fl.example.org", "10.0.0.7"))
    authority, server = (x509.load_pem_x509_certificate(p.read_bytes()) for p in (made.authority, made.server))
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    private, public = make_node_key(tmp_path, "client-0")
    load_ssh_public_key(public.read_bytes())
    for secret in (made.server_key, private):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_network_uses_a_free_port_even_where_the_usual_one_is_taken(tmp_path):
    taken = socket.socket()
    try:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert free_port() != taken.getsockname()[1]
    finally:
        taken.close()


def test_stopping_a_network_stops_what_its_processes_started(tmp_path):
    started = tmp_path / "started"
    code = "import subprocess, time; child = subprocess.Popen(['sleep', '600']); "
    code += f"open({str(started)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    network = LocalNetwork(tmp_path / "n", secure=False)
    parent = network._start("parent", "python", "-c", code)
    assert _within_seconds(lambda: started.exists() and started.read_text())
    network.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert parent.poll() is not None
    assert _within_seconds(lambda: not _runs(int(started.read_text())))


@pytest.mark.parametrize("end", [lambda network: network.stop(), lambda network: network.kill(SUPERLINK)])
def test_what_a_superlink_started_in_a_session_of_its_own_ends_with_it(tmp_path, end):
    started = tmp_path / "started"
    code = "import subprocess, time; child = subprocess.Popen(['sleep', '600'], start_new_session=True); "
    code += f"open({str(started)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    network = LocalNetwork(tmp_path / "n", secure=False)
    network._start(SUPERLINK, "python", "-c", code)
    assert _within_seconds(lambda: started.exists() and started.read_text())
    end(network)
    assert _within_seconds(lambda: not _runs(int(started.read_text())))


def _within_seconds(happened):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.05)
    return False


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def registry(path=None):
    book = Registry(clients=3, patience=2, path=path)
    book.meet([Node(1, "a"), Node(2, "b", "client-2")])
    return book


@pytest.mark.parametrize(
    ("node", "client", "samples"),
    [
        (Node(1, "a"), 3, 10),
        (Node(1, "a"), "0", 10),
        (Node(1, "a"), True, 10),
        (Node(1, "a"), 0, 0),
        (Node(1, "a"), 0, 2**50),
        (Node(2, "b", "client-2"), 1, 10),
    ],
)
def test_claims_that_cannot_be_are_refused(node, client, samples):
    with pytest.raises(WireError):
        registry().claim(node, client, samples)


def test_a_name_given_by_the_operator_beats_whoever_came_first():
    book = registry()
    book.claim(Node(1, "a"), 2, 10)
    book.claim(Node(2, "b", "client-2"), 2, 20)
    assert book.node(2).id == 2
    book.meet([Node(1, "a")])  # the named one is away; its place is not free
    with pytest.raises(WireError, match="another node"):
        book.claim(Node(1, "a"), 2, 10)


def test_without_names_a_place_is_free_once_its_node_is_gone():
    book = registry()
    book.claim(Node(1, "a"), 0, 10)
    with pytest.raises(WireError, match="another node"):
        book.claim(Node(2, "c"), 0, 10)
    book.meet([Node(3, "c")])
    book.claim(Node(3, "c"), 0, 10)
    assert book.node(0).id == 3


def test_the_book_survives_and_a_round_opened_again_is_no_further_round_away(tmp_path):
    book = registry(tmp_path / "book.json")
    book.claim(Node(1, "a"), 0, 10)
    book.claim(Node(2, "b", "client-2"), 2, 20)
    book.open_round(0)
    book.meet([Node(1, "a")])
    book.open_round(1)
    again = Registry(clients=3, patience=2, path=tmp_path / "book.json")
    again.meet([Node(1, "a")])
    again.open_round(1)
    assert again.calendar.members(1).tolist() == [True, False, True]
    again.open_round(2)
    assert again.calendar.members(2).tolist() == [True, False, False]
    assert (again.sizes.tolist(), again.named) == ([10, 0, 20], {2})
    (tmp_path / "book.json").write_text("{}")
    with pytest.raises(UserError, match="damaged"):
        Registry(clients=3, patience=2, path=tmp_path / "book.json")
