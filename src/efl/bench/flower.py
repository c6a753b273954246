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

from efl.flower.client import Site

begin, train = Site.__init__, Site.train


def begun(self, *arguments):
    self.began = time.perf_counter()
    begin(self, *arguments)


def trained(self, letter):
    answer = train(self, letter)
    self.directory.mkdir(parents=True, exist_ok=True)
    with open(self.directory / "seconds", "a") as file:
        print(time.perf_counter() - self.began, file=file)
    return answer


Site.__init__, Site.train = begun, trained
"""


@dataclass(frozen=True)
class Rounds:
    """Seconds a round, of ours and of a round of nothing; ``work`` is what of ours is loading the data and training."""

    ours: float
    nothing: float
    work: float

    def __str__(self) -> str:
        beyond = (self.ours - self.work) / self.nothing - 1
        return (
            f"a round: {self.ours:.1f} s, of which a client's work {self.work:.2f} s; a round of nothing on Flower: "
            f"{self.nothing:.1f} s; ours beyond that and the work: {100 * beyond:+.0f} %"
        )


def measure(nodes: int, rounds: int) -> Rounds:
    """Play both, one after the other, on one network of this machine."""
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
        work = [float(line) for line in (network.directory / "clients" / "seconds").read_text().split()]
    return Rounds(median(taken), median(idle), median(work))
