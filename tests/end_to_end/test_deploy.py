"""Networks of real processes: one in which about everything is killed, and the walk-through of docs/deploy.md.

They took 8:30 and 2:30 on two cores with a load of 13. What happens is waited for; deadlines are for what never does.
"""

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

from walk_through import WalkThrough

import efl
from efl.config import parse
from efl.deploy.certificates import make_node_key
from efl.deploy.client import free_port
from efl.deploy.demo import prepare_app
from efl.deploy.network import LocalNetwork
from efl.deploy.status import network_status
from efl.deploy.superlink import SUPERLINK
from efl.deploy.supervisor import Supervisor
from efl.storage import read_state

ROUNDS = 3
SETTINGS = {
    "federation": {"clients": 5, "partition": "classes:2"},
    "training": {"rounds": ROUNDS, "cohort": 5, "local_steps": 5, "evaluate_every": ROUNDS},
    "algorithm": {"name": "efl", "density_up": 0.05, "density_down": 0.05},
    "network": {"deadline": 300.0, "margin": 10.0, "wait_for": 4, "rejoin": 200.0},
}
NOTICED = 20.0  # seconds until Flower has noticed that a node is gone
HEALED = 60.0  # seconds within which a run goes on, on a machine that starts one as quickly as `USUAL`
USUAL = 30.0  # seconds from nothing to a server's app that waits for clients
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
    part = os.path.join(folder, f"{time.time_ns()}.part")
    with open(part, "wb") as file:
        np.savez(file, **{k: np.asarray(v) for k, v in entry.items()})
    os.rename(part, part.removesuffix("part") + "npz")  # it may be killed at any moment
    return sent


ErrorFeedback.encode_up = written_down
"""


class Supervised:
    """A supervised run, and a service manager for the nodes, both in the background; and the lines the run says."""

    def __init__(self, network, app):
        self.network, self.lines, self.over, self.began = network, [], threading.Event(), time.monotonic()
        self.supervisor = Supervisor(network, app, lambda line: self.lines.append((time.monotonic(), line)))
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.supervisor.serve, self._manage)]
        self.threads[0].start()

    def _manage(self):
        """Start nodes again as soon as Flower, which has to notice first that they are gone, lets them in."""
        ended = {}
        while not self.over.wait(1.0):
            now = time.monotonic()
            for name, process in list(self.network.processes.items()):
                if process.poll() is not None:
                    ended.setdefault(name, now)
            waiting = {name for name, at in ended.items() if now < at + NOTICED}
            for name in self.network.revive(except_for=waiting):
                ended.pop(name, None)

    def manage_nodes(self):
        self.threads[1].start()

    def wait_for(self, text, after=0, seconds=300):
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


def wait_until_worked(folder, seconds=300):
    """Until a client has done its work of a round; its reply may not have left yet."""
    end = time.monotonic() + seconds
    while not list(folder.glob("*.npz")):
        assert time.monotonic() < end, f"{folder}: nothing"
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


def kill_superlink(network):
    os.kill(network.processes[SUPERLINK].pid, signal.SIGKILL)


def kill(run, network, nodes, *others):
    """Some nodes and parts of the server, at the same moment; how long until the server is back."""
    before, killed = len(run.lines), time.monotonic()
    kill_nodes(network, nodes)
    for other in others:
        other(network)
    return run.wait_for("efl on the clients' data", before) - killed


@pytest.mark.long
def test_a_network_in_which_about_everything_is_killed_comes_to_the_simulations_model(tmp_path):
    journal, out = tmp_path / "journal", tmp_path / "run"
    app = prepare_app(tmp_path / "app", out, 5, SETTINGS)
    with (app / "federated" / "client_app.py").open("a") as file:
        file.write(JOURNAL)
    with LocalNetwork(tmp_path / "network") as network:
        run = Supervised(network, app)
        network.wait_until_up()
        network.register(*range(5))
        for client in range(4):
            start(network, client, journal)
        make_node_key(tmp_path / "network" / "keys", "stranger")
        network.start_node(4, name="stranger")  # a key that nobody registered
        network.start_node(4, name="plain", secure=False)  # no TLS
        network.start_node(0, name="client-4")  # says it is client 0, was registered as client 4
        run.wait_for("says it is client 0, but was registered as client-4")
        started = run.wait_for("waiting for clients") - run.began
        wait_until_worked(journal / "1" / "0")  # its reply may not have left yet
        for name in ("stranger", "plain", "client-4"):
            network.kill(name)
        run.manage_nodes()
        healed = [kill(run, network, (0, 1), kill_server_app)]
        start(network, 4, journal)  # a newcomer
        wait_until_worked(journal / "2" / "1")
        healed += [kill(run, network, (2, 3), kill_superlink)]
        wait_until_worked(journal / "0" / "2")
        healed += [kill(run, network, range(4), kill_server_app, kill_superlink)]
        assert run.end(300), run.lines
        processes = list(network.processes.values())
    print(f"started in {started:.0f} s, healed in {', '.join(f'{one:.0f}' for one in healed)} s")
    print(*(f"{at - run.began:6.1f} {line}" for at, line in run.lines), sep="\n")
    assert max(healed) < HEALED * max(1.0, started / USUAL)
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


PAGE = Path(__file__).resolve().parents[2] / "docs" / "deploy.md"


@pytest.mark.long
def test_the_walk_through_works_as_written(tmp_path):
    values = {"SERVER": "localhost", "PORT": str(free_port()), "LISTEN": "127.0.0.1"}
    run = tmp_path / "server" / "server" / "runs" / "flower"
    with WalkThrough(PAGE, "## Real machines, step by step", tmp_path, values, clients=3) as walk:
        assert walk.variables == {*values, "CLIENT"}
        blocks = [block for block in walk.blocks() if block[0]]
        assert len(blocks) == 5
        for number, block in enumerate(blocks):
            if number == len(blocks) - 1:  # the last one asks how things are, once somebody is there
                walk.wait_for(lambda: run.exists() and online(run) == [0, 1, 2])
            said = walk.run(*block)
        assert said.count("online") == 3
        assert f"{Path('server/runs/flower')}: running, " in said
        walk.wait_for((run / "summary.json").exists)
        walk.wait_for(lambda: walk.staying["server"].poll() == 0)
        assert "finished, 1 of 1 rounds" in walk.run(*blocks[-1])
    assert json.loads((run / "summary.json").read_text())["clients"] == 3
    assert "Finished: " in walk.log("server")


def online(run):
    return [one.client for one in network_status(run).clients if one.online]
