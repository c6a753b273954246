"""The ClientApp: one client, on the machine that has its data."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from efl.algorithms.base import RoundSettings
from efl.algorithms.fitting import for_clients
from efl.client.evaluation import EvaluateRequests, Personalisation
from efl.client.host import ClientHost
from efl.client.state_file import CachedReply, StateFile, request_hash, state_directory
from efl.config import Experiment
from efl.errors import UserError, WireError, reason
from efl.federation import Federation
from efl.flower.config import LoadData, MakeModel, experiment_of, fleet_of
from efl.flower.envelope import Envelope, pack, unpack
from efl.processes import single_threaded
from efl.runs.setup import LocalSetup, algorithm_of, build
from efl.training.local_work import no_deadline
from efl.wire import Dense, EvaluateReply, EvaluateRequest, TrainRequest, received
from efl.wire.parts import decode_parts

CountSamples = Callable[[Mapping[str, Any], Experiment], int]
MOST_NODES = 16  # whose data and model one process keeps: a process has one client, but in simulations


def client_app(make_model: MakeModel, load_data: LoadData, count_samples: CountSamples | None = None) -> ClientApp:
    """A ClientApp that trains ``make_model(experiment)`` on ``load_data(node_config, experiment)``.

    Args:
        make_model: The network.
        load_data: The node's data, a `Federation` of one client, such as
            ``Federation.from_tensors(x, y, clients=1)``; which client it is, the node's ``partition-id`` says.
        count_samples: How many training samples the node has, where that is known without loading them.

    Returns:
        The app. It loads data and builds the model once per process.
    """
    app = ClientApp()
    nodes: dict[str, Node] = {}

    def node(context: Context) -> Node:
        key = json.dumps([dict(context.node_config), dict(context.run_config)], sort_keys=True, default=str)
        if key not in nodes:
            if len(nodes) == MOST_NODES:
                del nodes[next(iter(nodes))]
            run = experiment_of(context.run_config)
            nodes[key] = Node(make_model, load_data, context.node_config, run, count_samples)
        return nodes[key]

    def replying(answer: Callable[[Node, Envelope], Envelope]) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            began, envelope = time.monotonic(), unpack(message)
            reply: dict[str, Any] = {"run": str(envelope.get("run")), "client": client_number(context.node_config)}
            try:
                reply |= answer(node(context), {**envelope, "began": began})
            except (WireError, UserError) as error:
                reply["error"] = str(error)
            except OSError as error:  # a full or broken disk, a file that may not be read
                reply["error"] = reason(error)
            return Message(pack(reply), reply_to=message)

        return handle

    app.query()(replying(Node.identify))
    app.train()(replying(Node.train))
    app.evaluate()(replying(Node.evaluate))
    return app


def client_number(node_config: Mapping[str, Any]) -> int:
    """Which client this node has."""
    number = node_config.get("partition-id")
    if not isinstance(number, int) or number < 0:
        raise UserError("--node-config: say which client this is, such as 'partition-id=0'")
    return number


class Node:
    """One client where it lives: its data, its model, its state file."""

    def __init__(
        self,
        make_model: MakeModel,
        load_data: LoadData,
        node_config: Mapping[str, Any],
        experiment: Experiment,
        count_samples: CountSamples | None = None,
    ) -> None:
        self.client, self.experiment, self.node_config = client_number(node_config), experiment, dict(node_config)
        self.make_model, self.load_data, self.count_samples = make_model, load_data, count_samples
        self.directory = state_directory(node_config.get("state-dir"))

    @cached_property
    def data(self) -> Federation:
        """This client's data, loaded when they are first needed."""
        data = self.load_data(self.node_config, self.experiment)
        if len(data) != 1:
            raise UserError(f"load_data gives {len(data)} clients; it should give this one's data only")
        return data

    @cached_property
    def setup(self) -> LocalSetup:
        """Model and data, built and checked when they are first needed."""
        clients = self.experiment.federation.clients
        if self.client >= clients:
            raise UserError(f"partition-id is {self.client}, but federation.clients is {clients}")
        data = replace(self.data, train=self.data.train * clients, test=self.data.test * clients)  # whatever its number
        algorithm, fleet = for_clients(algorithm_of(self.experiment)), fleet_of(self.experiment)
        return build(self.experiment, data, self.make_model(self.experiment), algorithm, fleet, deployed=True)

    def host(self, time_left: Callable[[], bool] = no_deadline) -> ClientHost:
        """A host of this client alone, without any state yet."""
        return ClientHost(self.setup.algorithm, self.setup.trainer.until(time_left))

    def identify(self, envelope: Envelope) -> Envelope:
        """How many samples this client has."""
        if self.count_samples is not None:
            return {"samples": self.count_samples(self.node_config, self.experiment)}
        return {"samples": len(self.data.train[0])}

    def train(self, envelope: Envelope) -> Envelope:
        """Train for a round, for as long as there is time."""
        blob, end = self._blob(envelope), envelope["began"] + float(envelope.get("seconds", 0.0))
        file = self._file(envelope)
        host, cached = file.load(lambda: self.host(lambda: time.monotonic() < end))
        if cached is None or cached.request != request_hash(blob):
            request = TrainRequest.from_bytes(blob, host.limits)
            self._check_address(request.client)
            with single_threaded():
                replies = host.train({self.client: blob}, {self.client: request.local_steps})
            cached = CachedReply(request_hash(blob), host.steps_done.get(self.client, 0), replies.get(self.client))
            file.save(host, cached)
        return {"steps": cached.steps} | ({} if cached.reply is None else {"blob": cached.reply})

    def evaluate(self, envelope: Envelope) -> Envelope:
        """How good a model is on the test data here, or the personalised model that a round of training makes of it."""
        host = self.host()
        request = EvaluateRequest.from_bytes(self._blob(envelope), host.limits)
        self._check_address(request.client)
        if request.personalised or len(host.trainer.model.personal):
            host, _ = self._file(envelope).load(self.host)
        with single_threaded():
            metrics = host.evaluate(self._decoded(request, host))
        sums = {name: (float(total[0]), float(weight[0])) for name, (total, weight) in metrics.items()}
        return {"blob": EvaluateReply(request.round, self.client, sums).to_bytes()}

    def _decoded(self, request: EvaluateRequest, host: ClientHost) -> EvaluateRequests:
        (model,) = received("model", [request.model], host.worker.plain)
        w = torch.from_numpy(model.onto(host.w.numpy()))
        how = None
        if request.personalised:
            layout = host.worker.plain.layout
            steps, batch = request.local_steps, request.batch_size
            settings = RoundSettings(request.round, request.eta, steps, batch, layout, request.clients)
            personal = {} if request.personal is None else {self.client: request.personal}
            how = Personalisation(settings, request.shared, personal)
        return EvaluateRequests(request.round, np.array([self.client]), w, _buffers(request, host), how)

    def _file(self, envelope: Envelope) -> StateFile:
        return StateFile(self.directory, str(envelope["run"]), self.client)

    def _blob(self, envelope: Envelope) -> bytes:
        """The request in an envelope, if that is addressed to this client."""
        self._check_address(envelope.get("client"))
        blob = envelope.get("blob")
        if not isinstance(blob, bytes):
            raise WireError("an envelope without a request")
        return blob

    def _check_address(self, client: object) -> None:
        if client != self.client:
            raise WireError(f"a request for client {client!r:.40} came to client {self.client}")


def _buffers(request: EvaluateRequest, host: ClientHost) -> Tensor:
    """The model's float buffers: those of the request, if it has some."""
    buffers = host.trainer.model.buffers
    if request.buffers is not None:
        found = decode_parts({"buffers": request.buffers}, host.worker.plain, len(buffers))["buffers"]
        buffers = torch.from_numpy(found.values) if isinstance(found, Dense) else buffers
    return buffers
