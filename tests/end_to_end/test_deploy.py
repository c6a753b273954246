"""A network of real processes in which about everything goes wrong. Bounded: six minutes on a slow machine."""

import json
import threading
import time
from pathlib import Path

import msgpack
import numpy as np
import pytest

pytest.importorskip("flwr")

from efl.deploy.certificates import make_node_key
from efl.deploy.demo import prepare_app
from efl.deploy.network import LocalNetwork
from efl.storage import read_state

ROUNDS = 6
SETTINGS = {
    "federation": {"clients": 5, "partition": "classes:2"},
    "training": {"rounds": ROUNDS, "cohort": 5, "local_steps": 5, "evaluate_every": ROUNDS},
    "algorithm": {"density_up": 0.05, "density_down": 0.05},
    "network": {"deadline": 40.0, "margin": 10.0, "wait_for": 4, "patience": 2},
}
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


class Watched:
    """An app's run in the background, and the lines it says."""

    def __init__(self, network, app):
        self.lines = []
        self.thread = threading.Thread(target=self._watch, args=(network, app), daemon=True)
        self.thread.start()

    def _watch(self, network, app):
        for line in network.run_app(app):
            self.lines.append(line)

    def wait_for(self, text, seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(text in line for line in self.lines):
                return
            time.sleep(0.2)
        raise AssertionError(f"{text!r} was not said: {self.lines}")


def start(network, client, journal):
    network.environment["EFL_JOURNAL"] = str(journal / str(client))
    network.start_node(client)


def wait_until_worked(folder, seconds=60):
    """Until a client has done its work of a round; its reply may not have left yet."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not list(folder.glob("*.npz")):
        time.sleep(0.02)


def bring_back(network, client, journal, seconds=120):
    """Start a node again, as a service manager does, until the SuperLink has noticed that it was gone."""
    log, end = network.directory / f"client-{client}.log", time.monotonic() + seconds
    while time.monotonic() < end:
        before = log.read_text().count("SuperNode ID")
        start(network, client, journal)
        while network.processes[f"client-{client}"].poll() is None:
            if log.read_text().count("SuperNode ID") > before:
                return
            time.sleep(0.2)
        network.kill(f"client-{client}")
        time.sleep(5)
    raise AssertionError(log.read_text())


@pytest.mark.long
def test_a_network_in_which_about_everything_goes_wrong(tmp_path):
    journal, out = tmp_path / "journal", tmp_path / "run"
    app = prepare_app(tmp_path / "app", out, 5, SETTINGS)
    with (app / "federated" / "client_app.py").open("a") as file:
        file.write(JOURNAL)
    with LocalNetwork(tmp_path / "network") as network:
        network.start_superlink()
        for client in range(5):
            network.register(client)
        for client in range(4):
            start(network, client, journal)
        make_node_key(tmp_path / "network" / "keys", "stranger")
        network.start_node(4, name="stranger")  # a key that nobody registered
        network.start_node(4, name="plain", secure=False)  # no TLS
        network.register(4, name="liar")
        network.start_node(0, name="liar")  # says it is client 0, was registered as client 4
        first = Watched(network, app)
        first.wait_for("says it is client 0, but was registered as client-4")
        first.wait_for("round 1/")
        for name in ("stranger", "plain", "liar"):
            network.kill(name)
        wait_until_worked(journal / "1" / "1")
        network.kill("client-1")  # in the middle of a round, its work just done
        network.kill("client-2")  # for good
        start(network, 4, journal)  # a newcomer
        bring_back(network, 1, journal)
        first.wait_for("round 3/")
        wait_until_worked(journal / "0" / "3")
        network.kill("superlink")  # and with it the server's app
        network.kill("flwr-run")
        first.thread.join(30)
        assert not (out / "summary.json").exists()
        network.start_superlink()
        second = Watched(network, app)
        second.wait_for("resumed after round")
        second.wait_for("finished", 300)
        second.thread.join(60)
        processes = list(network.processes.values())
    assert all(process.poll() is not None for process in processes)
    assert "No SuperNode found with the given public key" in (tmp_path / "network" / "superlink.log").read_text()
    assert "SuperNode ID" not in (tmp_path / "network" / "plain.log").read_text()
    history = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    check_ledger(history, summary)
    check_members(history)
    for client in range(5):
        check_accounts(client, history, journal / str(client), tmp_path / "network" / "clients")


def check_ledger(history, summary):
    assert [record["round"] for record in history] == list(range(ROUNDS))
    assert sum(record["bytes_up"] for record in history) == summary["bytes_up"]
    assert sum(record["bytes_down"] for record in history) == summary["bytes_down"]
    assert all(set(record["counted"]) <= {int(c) for c in record["clients"]} for record in history)


def check_members(history):
    """Client 2 leaves, client 4 comes, client 1 comes back."""
    changes = [(c["what"], c["clients"]) for record in history for c in record.get("membership", [])]
    assert any(what == "arrived" and 4 in clients for what, clients in changes)
    assert any(what == "departed" and 2 in clients for what, clients in changes)
    assert {1, 4} <= set(history[-1]["counted"])
    assert "2" not in history[-1]["clients"]


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
