"""A network of real processes in which about everything goes wrong. Bounded: six minutes on a slow machine."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import msgpack
import numpy as np
import pytest

pytest.importorskip("flwr")

import efl
from efl.config import parse
from efl.deploy.certificates import make_node_key
from efl.deploy.demo import prepare_app
from efl.deploy.network import LocalNetwork
from efl.deploy.superlink import SUPERLINK
from efl.deploy.supervisor import Supervisor
from efl.storage import read_state

ROUNDS = 5
SETTINGS = {
    "federation": {"clients": 5, "partition": "classes:2"},
    "training": {"rounds": ROUNDS, "cohort": 5, "local_steps": 5, "evaluate_every": ROUNDS},
    "algorithm": {"name": "efl", "density_up": 0.05, "density_down": 0.05},
    "network": {"deadline": 100.0, "margin": 10.0, "wait_for": 4, "rejoin": 80.0},
}
HEALED = 60.0  # seconds within which a run goes on
# Every work of a client is written down: what it had, what it made, what it sent, what is left.
JOURNAL = """

import os
import time

import numpy as np
import torch

from efl.algorithms.compression.error_feedback import ErrorFeedback

encode_up = ErrorFeedback.encode_up


def written_down(self, work, on_sent=None):
    made = work.delta[0].clone()
    sent = encode_up(self, work, on_sent)
    whole = torch.from_numpy(sent[0].onto(np.zeros(work.model.n, np.float32)))
    left = work.state["residual"][0]
    entry = {"had": left + whole - made, "made": made, "sent": whole, "left": left}
    folder = os.path.join(os.environ["EFL_JOURNAL"], str(work.settings.round))
    os.makedirs(folder, exist_ok=True)
    np.savez(os.path.join(folder, f"{time.time_ns()}.npz"), **{k: np.asarray(v) for k, v in entry.items()})
    return sent


ErrorFeedback.encode_up = written_down
"""


class Supervised:
    """A supervised run, and a service manager for the nodes, both in the background; and the lines the run says."""

    def __init__(self, network, app):
        self.network, self.lines, self.over = network, [], threading.Event()
        self.supervisor = Supervisor(network, app, lambda line: self.lines.append((time.monotonic(), line)))
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.supervisor.serve, self._manage)]
        self.threads[0].start()

    def _manage(self):
        while not self.over.wait(2.0):
            self.network.revive()

    def manage_nodes(self):
        self.threads[1].start()

    def wait_for(self, text, after=0, seconds=180):
        """Until a line is said that is not among the first ``after``; when it was."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for at, line in self.lines[after:]:
                if text in line:
                    return at
            time.sleep(0.2)
        raise AssertionError(f"{text!r} was not said: {[line for _, line in self.lines]}")

    def end(self, seconds):
        self.threads[0].join(seconds)
        self.over.set()
        self.threads[1].join(10)
        return not self.threads[0].is_alive()


def start(network, client, journal):
    network.environment["EFL_JOURNAL"] = str(journal / str(client))
    network.start_node(client)


def wait_until_worked(folder, seconds=90):
    """Until a client has done its work of a round; its reply may not have left yet."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not list(folder.glob("*.npz")):
        time.sleep(0.02)


def kill_nodes(network, clients):
    """As power cuts would, but the service manager is left to find out."""
    for client in clients:
        os.killpg(network.processes[f"client-{client}"].pid, signal.SIGKILL)


def kill_server_app(network):
    """The process that has the run's coordinator, one of those the SuperLink started."""
    network.note_children()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if os.getpgid(int(folder.name)) in network.groups and any(b"flwr-serverapp" in word for word in words[:2]):
                os.kill(int(folder.name), signal.SIGKILL)
                return
        except (OSError, ProcessLookupError):
            continue
    raise AssertionError("there is no server's app")


def kill_everything(run, network, worked):
    """Every node when one has just done its work, the server's app, and the SuperLink when that is back."""
    wait_until_worked(worked)
    before = len(run.lines)
    kill_nodes(network, range(4))
    kill_server_app(network)
    killed = time.monotonic()
    assert run.wait_for("resumed after round", before) - killed < HEALED
    before = len(run.lines)
    os.kill(network.processes[SUPERLINK].pid, signal.SIGKILL)
    killed = time.monotonic()
    assert run.wait_for("resumed after round", before) - killed < HEALED


@pytest.mark.long
def test_a_network_in_which_about_everything_goes_wrong(tmp_path):
    journal, out = tmp_path / "journal", tmp_path / "run"
    app = prepare_app(tmp_path / "app", out, 5, SETTINGS)
    with (app / "federated" / "client_app.py").open("a") as file:
        file.write(JOURNAL)
    with LocalNetwork(tmp_path / "network") as network:
        run = Supervised(network, app)
        network.wait_until_up()
        for client in range(4):
            network.register(client)
            start(network, client, journal)
        make_node_key(tmp_path / "network" / "keys", "stranger")
        network.start_node(4, name="stranger")  # a key that nobody registered
        network.start_node(4, name="plain", secure=False)  # no TLS
        network.register(0, name="second")
        network.start_node(0, name="second")  # another key by the name of client 0
        network.register(4, name="liar")
        network.start_node(0, name="liar")  # says it is client 0, was registered as client 4
        run.wait_for("says it is client 0, but was registered as client-4")
        run.wait_for("was registered as client-0, but so was another key")
        run.wait_for("round 1/")
        for name in ("stranger", "plain", "liar", "second"):
            network.kill(name)
        run.manage_nodes()
        kill_everything(run, network, journal / "1" / "1")
        run.wait_for("round 2/")
        network.register(4)
        start(network, 4, journal)  # a newcomer
        kill_everything(run, network, journal / "0" / "2")
        assert run.end(240), run.lines
        processes = list(network.processes.values())
    assert all(process.poll() is not None for process in processes)
    assert "No SuperNode found with the given public key" in (tmp_path / "network" / "superlink.log").read_text()
    assert "SuperNode ID" not in (tmp_path / "network" / "plain.log").read_text()
    history = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    check_ledger(history, summary)
    check_model(history, summary)
    for client in range(5):
        check_accounts(client, history, journal / str(client), tmp_path / "network" / "clients")


def check_ledger(history, summary):
    assert [record["round"] for record in history] == list(range(ROUNDS))
    assert sum(record["bytes_up"] for record in history) == summary["bytes_up"]
    assert sum(record["bytes_down"] for record in history) == summary["bytes_down"]
    assert all(set(record["counted"]) <= {int(c) for c in record["clients"]} for record in history)


def check_model(history, summary):
    """Nobody was ever missing, and the model is that of a simulation in which client 4 comes as late."""
    changes = [(record["round"], c["what"], c["clients"]) for record in history for c in record.get("membership", [])]
    ((arrival, what, clients),) = changes
    assert (what, clients) == ("arrived", [4])
    assert [len(record["counted"]) for record in history] == [4] * arrival + [5] * (ROUNDS - arrival)
    table = {name: values for name, values in SETTINGS.items() if name != "network"}
    table["training"] = {**table["training"], "batch_size": 20, "learning_rate": 0.1, "seed": 0}
    table["training"]["robust"] = "default"  # as in every deployment
    simulated = efl.run(parse({**table, "fleet": {"arrivals": [[arrival, [4]]]}}))
    assert summary["model_sha256"] == simulated.summary["model_sha256"]


def check_accounts(client, history, journal, states):
    """Everything a client ever made was counted by the server, or is still in its hands; nothing twice."""
    (state,) = states.glob(f"*/client-{client}.safetensors")
    store = read_state(state)["host"]["store"]
    ((_, last_round, _),) = msgpack.unpackb(store["uploads"].numpy().tobytes())
    works = [dict(np.load(path)) | {"round": int(path.parent.name)} for path in Path(journal).glob("*/*.npz")]
    rounds = [record["round"] for record in history if client in record["counted"]]
    # What the client has now was left by one work, which began with what another left, back to the first. Works that
    # are not in this chain were cut short before they were kept, and nothing of them was sent.
    chain, wanted = [], store["rows"]["residual"][0].numpy()
    while np.any(wanted):
        work = next(w for w in works if np.array_equal(w["left"], wanted))
        chain.append(work)
        before = [w for w in works if w["round"] < work["round"] or w is work]
        kept = [w["left"] for w in before] + [w["left"] + w["sent"] for w in before] + [np.zeros_like(wanted)]
        matches = [k for k in kept if np.allclose(k, work["had"], atol=1e-7)]
        assert matches, f"client {client} began round {work['round']} with something nobody left"
        source = next((w for w in before if np.allclose(w["left"], work["had"], atol=1e-7)), None)
        taken_back = next((w for w in before if np.allclose(w["left"] + w["sent"], work["had"], atol=1e-7)), None)
        if source is None and taken_back is not None:
            assert taken_back["round"] not in rounds, "an update that was counted was taken back as well"
            source = taken_back
        wanted = np.zeros_like(wanted) if source is None else source["left"]
    assert sorted({work["round"] for work in chain}) == sorted(work["round"] for work in chain)
    assert set(rounds) <= {work["round"] for work in chain}
    made = sum(work["made"].astype(np.float64) for work in chain)
    sent = sum(work["sent"].astype(np.float64) for work in chain if work["round"] in rounds)
    last = chain[0]
    in_hand = last["left"].astype(np.float64) + (0 if last["round"] in rounds else last["sent"])
    assert last_round == last["round"]
    np.testing.assert_allclose(sent + in_hand, made, atol=1e-5)
