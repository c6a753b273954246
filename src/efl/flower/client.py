"""The ClientApp: one client, on the machine that has its data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from efl.client.host import ClientHost
from efl.client.state_file import Answered, Memory, digest, state_directory
from efl.client.worker import Briefing, Score, decoded_parts
from efl.config import Experiment
from efl.errors import UserError, WireError
from efl.federation import Federation
from efl.flower.config import experiment_of, fleet_of
from efl.flower.transport import Letter, enclosed, opened
from efl.processes import single_threaded
from efl.runs.setup import prepare
from efl.training.local_work import no_deadline
from efl.wire import PERSONAL, Dense, received
from efl.wire import Message as Request

MakeModel = Callable[[Experiment], nn.Module]
LoadData = Callable[[Mapping[str, Any], Experiment], Federation]


def client_app(make_model: MakeModel, load_data: LoadData) -> ClientApp:
    """A ClientApp that trains ``make_model(experiment)`` on ``load_data(node_config, experiment)``.

    The data are a `Federation` of one client, such as ``Federation.from_tensors(x, y, clients=1)``; which client it is,
    the node's ``partition-id`` says.
    """
    app = ClientApp()

    def site(context: Context) -> Site:
        return Site(make_model, load_data, context.node_config, experiment_of(context.run_config))

    def answering(answer: Callable[[Site, Letter], Letter]) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            began = time.monotonic()
            letter = opened(message)
            words: dict[str, Any] = {"run": str(letter.get("run")), "client": client_number(context.node_config)}
            try:
                words |= answer(site(context), {**letter, "began": began})
            except (WireError, UserError) as error:
                words["error"] = str(error)
            return Message(enclosed(words), reply_to=message)

        return handle

    app.query()(answering(Site.hello))
    app.train()(answering(Site.train))
    app.evaluate()(answering(Site.evaluate))
    return app


def client_number(node_config: Mapping[str, Any]) -> int:
    """Which client this node has."""
    number = node_config.get("partition-id")
    if not isinstance(number, int) or number < 0:
        raise UserError("--node-config: say which client this is, such as 'partition-id=0'")
    return number


class Site:
    """One client where it lives: its data, its model, its memory."""

    def __init__(
        self, make_model: MakeModel, load_data: LoadData, node_config: Mapping[str, Any], experiment: Experiment
    ) -> None:
        self.client, self.experiment = client_number(node_config), experiment
        self.make_model = make_model
        self.directory: Path = state_directory(node_config.get("state-dir"))
        self.data = load_data(node_config, experiment)
        if len(self.data) != 1:
            raise UserError(f"load_data gives {len(self.data)} clients; it should give this one's data only")

    def host(self, time_left: Callable[[], bool]) -> ClientHost:
        """The client function, for this client alone."""
        places = self.experiment.federation.clients
        if self.client >= places:
            raise UserError(f"partition-id is {self.client}, but federation.clients is {places}")
        data = replace(self.data, train=self.data.train * places, test=self.data.test * places)  # whatever its number
        setup = prepare(self.experiment, data, self.make_model(self.experiment), fleet=fleet_of(self.experiment))
        return ClientHost(setup.algorithm, replace(setup.trainer, time_left=time_left))

    def hello(self, letter: Letter) -> Letter:
        """Who this is."""
        return {"samples": len(self.data.train[0])}

    def train(self, letter: Letter) -> Letter:
        """A round of work, for as long as there is time."""
        request, end = self._request(letter), letter["began"] + float(letter.get("seconds", 0.0))
        memory = Memory(self.directory, str(letter["run"]), self.client)
        host = self.host(lambda: time.monotonic() < end)
        answered = memory.recall(host)
        if answered is None or answered.request != digest(letter["blob"]):
            answered = self._work(host, request, letter["blob"])
            memory.keep(host, answered)
        return {"steps": answered.steps} | ({} if answered.reply is None else {"blob": answered.reply})

    def _work(self, host: ClientHost, request: Request, blob: bytes) -> Answered:
        with single_threaded():
            replies = host.answer({self.client: blob}, {self.client: int(request.number("local_steps"))})
        return Answered(digest(blob), host.done.get(self.client, 0), replies.get(self.client))

    def evaluate(self, letter: Letter) -> Letter:
        """How good a model is on the test data here; or the one that a round of work makes of it."""
        request, host = self._request(letter), self.host(no_deadline)
        buffers = host.trainer.model.buffers
        if "buffers" in request.parts:
            told = decoded_parts({"buffers": request.parts["buffers"]}, host.trainer.model, host.hand.plain)["buffers"]
            buffers = torch.from_numpy(told.values) if isinstance(told, Dense) else buffers
        (model,) = received("model", request.log, host.hand.plain)
        w = torch.from_numpy(model.onto(host.w.numpy()))
        with single_threaded():
            if request.header.get("own"):
                return {"accuracy": self._own_accuracy(host, letter, request, w, buffers)}
            host.crew.tell(w, buffers)
            (right,) = host.crew.run([Score(self.data.test[0])])
            return {"accuracy": float(right.mean())}

    def _own_accuracy(self, host: ClientHost, letter: Letter, request: Request, w: Tensor, buffers: Tensor) -> float:
        Memory(self.directory, str(letter["run"]), self.client).recall(host)
        shared = {name: blob for name, blob in request.parts.items() if name != PERSONAL}
        briefing = Briefing(host.settings(request), shared)
        scores = host.score_own({self.client: request.parts.get(PERSONAL)}, briefing, w, buffers)
        return scores[self.client]

    def _request(self, letter: Letter) -> Request:
        """What the server wants, if it is meant for this client."""
        blob = letter.get("blob")
        if not isinstance(blob, bytes):
            raise WireError("a letter without a request")
        request = Request.from_bytes(blob, "request")
        if letter.get("client") != self.client or request.header.get("client", self.client) != self.client:
            raise WireError(f"a request for client {letter.get('client')!r:.40} came to client {self.client}")
        return request
