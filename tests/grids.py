"""Flower's grid without Flower's processes: messages go to apps in this process."""

from types import SimpleNamespace

import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import efl
from efl import load
from efl.config import parse
from efl.flower import client_app
from efl.flower.config import experiment_of
from efl.flower.server import build_server
from efl.models import Task, build
from efl.rng import Purpose, torch_seed
from efl.runs.loop import Run

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1

CONFIG = {
    "federation.clients": 4,
    "training.rounds": 3,
    "training.cohort": 4,
    "training.local_steps": 4,
    "training.evaluate_own_every": "never",
    "network.deadline": 5.0,
    "network.margin": 0.0,
}


def make_model(experiment):
    return build("mlp", Task((1, 8, 8), 10), torch_seed(experiment.training.seed, Purpose.MODEL))


def load_data(node_config, experiment):
    section = experiment.federation
    seed = experiment.training.seed
    return load("digits", section.clients, "classes:3", seed=seed).only(node_config["partition-id"])


class FakeGrid:
    """Nodes answer as soon as they are asked, unless they are told to misbehave.

    ``spoil`` may change, or with None swallow, the reply of a node; time passes only when somebody sleeps.
    """

    def __init__(self, config, directory, clients=4, names=False):
        self.config = config
        self.directory = directory
        self.app = client_app(make_model, load_data)
        self.nodes = {100 + k: self.node(100 + k, k, f"client-{k}" if names else "") for k in range(clients)}
        self.replies = {}
        self.pushed = []
        self.now = 0.0
        self.spoil = lambda node, message, reply: reply

    def node(self, number, partition, name=""):
        node_config = {"partition-id": partition, "state-dir": str(self.directory / "clients")}
        info = SimpleNamespace(node_id=number, public_key=b"key-%d" % number, name=name)
        return SimpleNamespace(info=info, node_config=node_config)

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        assert self.now < 10_000, "waited for ever"

    def get_nodes(self):
        return [node.info for node in self.nodes.values()]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            number = f"m{len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = number
            self.pushed.append(message)
            ids.append(number)
            node = self.nodes.get(message.metadata.dst_node_id)
            if node is None:
                self.replies[number] = Message(Error(code=5), reply_to=message)
                continue
            reply = self.spoil(node, message, self.answer(node, message))
            if reply is not None:
                self.replies[number] = reply
        return ids

    def answer(self, node, message):
        context = Context(1, node.info.node_id, node.node_config, RecordDict(), self.config)
        before = torch.get_num_threads()
        TaskIdentity.node_id = node.info.node_id
        try:
            return self.app(message, context)
        finally:
            TaskIdentity.node_id = 0
            torch.set_num_threads(before)

    def pull_messages(self, ids):
        return [self.replies.pop(number) for number in list(ids) if number in self.replies]


def served(tmp_path, config=None, grid=None, make_model=make_model, **network):
    """A server on a grid whose clock is the test's own; the run, and the lines it says."""
    config = {**CONFIG, "network.directory": str(tmp_path / "run"), **(config or {}), **network}
    grid = grid or FakeGrid(config, tmp_path)
    grid.config = config
    lines = []
    setup, directory = build_server(grid, experiment_of(config), make_model, lines.append)
    setup.mailbox.clock, setup.mailbox.sleep = grid.clock, grid.sleep
    return Run(setup, directory), grid, lines


def on_one_machine(config=None):
    """The summary of the same experiment as a simulation, defended as deployments are."""
    table = {}
    for name, value in {**CONFIG, **(config or {})}.items():
        section, _, key = name.partition(".")
        table.setdefault(section, {})[key] = value
    table |= {"fleet": {"stragglers": 0.0, "inactive": 0.0}, "engine": {"rows": 1, "workers": 1}}
    table["federation"]["partition"] = "classes:3"
    mime = table.get("algorithm", {}).get("name", "efl").startswith("mime")  # which cannot be defended
    table.setdefault("training", {}).setdefault("robust", "none" if mime else "default")
    return efl.run(parse(table)).summary


def spoiled(reply, **words):
    letter = {**dict(reply.content["efl"]), **words}
    reply.content["efl"] = ConfigRecord({key: value for key, value in letter.items() if value is not None})
    return reply
