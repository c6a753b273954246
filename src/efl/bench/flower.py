"""What a round over Flower costs beyond Flower itself: our app against one that does nothing, on the same network."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from efl.deploy.demo import prepare_app
from efl.deploy.network import LocalNetwork

SERVER = '''"""Rounds in which nothing happens."""

import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < {nodes}:
        time.sleep(1)
    for _ in range({rounds} + 1):  # the first is for warming up
        began = time.perf_counter()
        content = [RecordDict({{"efl": ConfigRecord({{"blob": b"x" * 600}})}}) for _ in grid.get_node_ids()]
        messages = [Message(c, node, "train") for c, node in zip(content, grid.get_node_ids())]
        replies = list(grid.send_and_receive(messages))
        print(f"efl: {{len(replies)}} {{time.perf_counter() - began:.3f}}", flush=True)
'''
CLIENT = '''"""A client that loads PyTorch, as all that train do, and sends back what it got."""

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
'''

TIMED = """

import time

from efl.client.host import ClientHost
from efl.flower.client import Node
from federated import task

seconds = []


def timed(function):
    def run(*arguments):
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            seconds.append(time.perf_counter() - began)

    return run


def noted(function):
    def run(self, envelope):
        began = time.perf_counter()
        answer = function(self, envelope)
        handled = time.perf_counter() - began
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "seconds", "a") as file:
            print(sum(seconds), handled - sum(seconds), file=file)
        return answer

    return run


task.load_data, task.make_model, ClientHost.train = map(timed, (task.load_data, task.make_model, ClientHost.train))
Node.train = noted(Node.train)
"""


@dataclass(frozen=True)
class Rounds:
    """Seconds a round, of ours and of a round of nothing.

    ``work`` is what the user's functions and training take in a client, ``beside`` what the rest of its handler takes.
    """

    ours: float
    nothing: float
    work: float
    beside: float

    def __str__(self) -> str:
        beyond = (self.ours - self.work) / self.nothing - 1
        return (
            f"a round: {self.ours:.1f} s, of which a client loads data, makes its model and trains for "
            f"{self.work:.2f} s, and does the rest in {self.beside:.2f} s\n"
            f"a round of nothing on Flower: {self.nothing:.1f} s\n"
            f"ours beyond that and the work: {100 * beyond:+.0f} %"
        )


def measure(nodes: int, rounds: int) -> Rounds:
    """Measure both, one after the other, on one network of this machine."""
    with tempfile.TemporaryDirectory(prefix="efl-bench-") as folder, LocalNetwork(Path(folder) / "n") as network:
        out = Path(folder) / "run"
        training: dict[str, Any] = {"rounds": rounds + 2, "cohort": nodes, "local_steps": 20, "evaluate_every": 10**6}
        settings: dict[str, dict[str, Any]] = {
            "federation": {"clients": nodes, "partition": "iid"},
            "training": training,
        }
        ours = prepare_app(Path(folder) / "ours", out, nodes, settings)
        nothing = prepare_app(Path(folder) / "nothing", out, nodes, {})
        timed = ours / "federated" / "client_app.py"
        timed.write_text(TIMED + timed.read_text())
        (nothing / "federated" / "server_app.py").write_text(SERVER.format(nodes=nodes, rounds=rounds))
        (nothing / "federated" / "client_app.py").write_text(CLIENT)
        network.start_superlink()
        for client in range(nodes):
            network.register(client)
            network.start_node(client)
        idle = [float(line.split()[1]) for line in network.run_app(nothing)][1:]
        for _ in network.run_app(ours):
            pass
        ends = [json.loads(line)["seconds"] for line in (out / "metrics.jsonl").read_text().splitlines()]
        taken = [after - before for before, after in pairwise(ends[:-1])]  # the last has a look at the model
        lines = (network.directory / "clients" / "seconds").read_text().splitlines()
        work, beside = zip(*(map(float, line.split()) for line in lines), strict=True)
    return Rounds(median(taken), median(idle), median(work), median(beside))
