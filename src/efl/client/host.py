"""The client side: requests in, replies out.

A `ClientHost` hosts one client or many that live on the same machine. It keeps one copy of the newest model it has
received, from which each client starts, and knows where its clients' state lies; an `Executor` runs the jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.base import Algorithm, RoundSettings
from efl.algorithms.pipeline import client_state
from efl.client.evaluation import EvaluateRequests, Metrics, Personalisation
from efl.client.executors import Executor, ProcessExecutor, SerialExecutor, Timeout
from efl.client.model_copy import ModelCopy
from efl.client.state_store import LastUpload, Slot, StateStore
from efl.client.worker import Broadcast, ClientJob, TrainJob, Worker
from efl.errors import UserError
from efl.training.trainer import SAMPLES_AT_ONCE, Trainer
from efl.wire import Dense, Limits, TrainReply, TrainRequest

BATCHES_PER_JOB = 8  # in an evaluation
CLIENTS_PER_JOB = 8  # in one whose metrics are not sums over samples


class ClientHost:
    """Trains and evaluates for its clients.

    Args:
        algorithm: The algorithm.
        trainer: The model and the clients' data.
        workers: Processes to train in; 1 for this one alone.
        state: The file for the clients' rows; by default a temporary one.
        worker_timeout: Seconds after which a worker process that does not finish its job is replaced.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        trainer: Trainer,
        workers: int = 1,
        state: Path | None = None,
        worker_timeout: Timeout = "auto",
    ) -> None:
        self.algorithm, self.trainer = algorithm, trainer
        self.store = StateStore(client_state(algorithm, trainer.model.n, len(trainer.model.personal)), state)
        self.worker = Worker(algorithm, trainer, self.store.file)
        self.limits = Limits.of(self.worker.plain.layout, len(trainer.model.buffers))
        self.copy = ModelCopy(algorithm.codec.start(trainer.model.w), self.worker.plain)
        self.workers, self.worker_timeout = workers, worker_timeout
        self.steps_done: dict[int, int] = {}  # by client, in the last round
        self._executor: Executor | None = None

    @property
    def w(self) -> Tensor:
        """The newest model that a client here received."""
        return self.copy.w

    @property
    def executor(self) -> Executor:
        """Runs the jobs; started when it is first needed."""
        return self._executor or self.start()

    def start(self) -> Executor:
        """Start the worker processes, if there are to be some; better before this process has threads of its own."""
        if self._executor is None:
            if self.workers == 1:
                self._executor = SerialExecutor(self.worker)
            else:
                self._executor = ProcessExecutor(self.worker, self.workers, self.worker_timeout)
        return self._executor

    def close(self) -> None:
        """Stop the worker processes, if any."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def train(self, blobs: Mapping[int, bytes], steps: Mapping[int, int]) -> dict[int, bytes]:
        """The replies of the clients that have one, encoded.

        Args:
            blobs: An encoded `TrainRequest` for each client.
            steps: How many local steps each client has time for.
        """
        requests = {client: TrainRequest.from_bytes(blob, self.limits) for client, blob in blobs.items()}
        able = {c: request for c, request in requests.items() if self._may_reply(request, steps[c])}
        replies = {c: _needs_model(request) for c, request in able.items() if not self.copy.can_receive(request)}
        able = {client: request for client, request in able.items() if client not in replies}
        self.steps_done = {}
        if not able:
            return replies
        broadcast = self._receive(able)
        slots = {client: self.store.reserve(client) for client in able}
        groups = self.trainer.groups({client: steps[client] for client in able}, self.executor.size)
        jobs = [TrainJob(broadcast, [_job(able[c], c, steps[c], slots[c], self.store) for c in g]) for g in groups]
        for result in chain.from_iterable(self.executor.map(Worker.train, jobs)):
            self.steps_done[result.client] = result.steps
            if result.reply is not None:
                replies[result.client] = result.reply
            if result.kept is None:
                self.store.decline(slots[result.client])
            else:
                upload = LastUpload(broadcast.settings.round, result.kept)
                self.store.accept(result.client, slots[result.client], result.checksum, upload)
        return replies

    def evaluate(self, requests: EvaluateRequests) -> Metrics:
        """Metrics of each client, on its own test data and with its own personal layers; nothing is stored."""
        if requests.personalisation is not None:
            return self._evaluate_personalised(requests, requests.personalisation)
        clients = requests.clients.tolist()
        self.executor.set_model(requests.w, requests.buffers)
        if len(self.trainer.model.personal):
            own = [self._observed(client, 0, None) for client in clients]
            return self._metrics(list(self.executor.map(Worker.evaluate_own, own)))
        if not self.trainer.objective.per_sample:
            jobs = [clients[start : start + CLIENTS_PER_JOB] for start in range(0, len(clients), CLIENTS_PER_JOB)]
            return self._metrics(list(chain.from_iterable(self.executor.map(Worker.evaluate_clients, jobs))))
        tests = [self.trainer.federation.test[client] for client in clients]
        samples, size = np.concatenate(tests), BATCHES_PER_JOB * SAMPLES_AT_ONCE
        places: NDArray[np.int64] | slice = slice(None)
        if self.trainer.federation.tests_overlap:  # what several clients are tested on is evaluated once
            samples, places = np.unique(samples, return_inverse=True)
        parts = [samples[start : start + size] for start in range(0, len(samples), size)]
        found = np.concatenate(list(self.executor.map(Worker.evaluate, parts)))[places]
        sizes = np.array([len(test) for test in tests])
        columns = np.ascontiguousarray(found.reshape(len(found), -1).T)  # each added up by itself
        summed = np.stack([np.add.reduceat(column, np.cumsum(sizes) - sizes) for column in columns], axis=1)
        return self._metrics(summed.reshape(len(tests), -1, 2))

    def _evaluate_personalised(self, requests: EvaluateRequests, how: Personalisation) -> Metrics:
        clients, steps = requests.clients.tolist(), how.settings.local_steps
        groups = self.trainer.groups(dict.fromkeys(clients, steps), self.executor.size)
        self.executor.set_model(requests.w, requests.buffers)
        broadcast = Broadcast(how.settings, how.shared)
        jobs = [TrainJob(broadcast, [self._observed(c, steps, how.personal.get(c)) for c in group]) for group in groups]
        found = chain.from_iterable(self.executor.map(Worker.evaluate_personalised, jobs))
        metrics = dict(zip(chain.from_iterable(groups), found, strict=True))
        return self._metrics([metrics[client] for client in clients])

    def _metrics(self, found: Sequence[NDArray[np.float64]] | NDArray[np.float64]) -> Metrics:
        """By name, from sums and weights (clients, metrics, 2)."""
        names, table = list(self.trainer.objective.metrics), np.asarray(found)
        return {name: (table[:, number, 0], table[:, number, 1]) for number, name in enumerate(names)}

    def personalised(self, requests: EvaluateRequests) -> tuple[Tensor, Tensor]:
        """The personalised model of the one client in ``requests``, and its float buffers; nothing is stored."""
        how, (client,) = requests.personalisation, requests.clients.tolist()
        assert how is not None
        worker, before = self.worker, (self.worker.w, self.worker.buffers)
        worker.w, worker.buffers = requests.w, requests.buffers
        try:
            job = self._observed(client, how.settings.local_steps, how.personal.get(client))
            return worker.personalised(TrainJob(Broadcast(how.settings, how.shared), [job]))
        finally:
            worker.w, worker.buffers = before

    def _observed(self, client: int, steps: int, personal: bytes | None) -> ClientJob:
        """A job that leaves the client's state as it is."""
        last = self.store.last_upload(client).round
        return ClientJob(client, steps, self.store.current(client), last, None, personal)

    def state_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """The copy of the model, what clients keep, and which data they have.

        Args:
            rows: Include the clients' rows, which otherwise stay in their file.
        """
        store, data = self.store.state_dict(rows=rows), self.trainer.federation.fingerprint
        return {**self.copy.state_dict(), "store": store, "data": data}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; `UserError` if it was with other data."""
        if "ranks" in state:
            raise UserError(f"it is of a run with {state['ranks']} ranks; resume it with torchrun and as many")
        if state.get("data", self.trainer.federation.fingerprint) != self.trainer.federation.fingerprint:
            raise UserError("it is of a run on other data than those at hand; pass those it was started with")
        self.store.load_state_dict(state["store"])
        self.copy.load_state_dict(state)

    def checkpointed(self) -> None:
        """The state was saved in a checkpoint."""
        self.store.checkpointed()

    def _may_reply(self, request: TrainRequest, steps: int) -> bool:
        return steps > 0 and (self.algorithm.uses_incomplete or steps >= request.local_steps)

    def _receive(self, requests: Mapping[int, TrainRequest]) -> Broadcast:
        """Bring the model up to date; what all of these clients receive alike."""
        first = next(iter(requests.values()))
        broadcast = Broadcast(self.settings(first), first.shared)
        shared, context = self.worker.received(broadcast)
        for request in _in_turn(requests.values()):
            self.copy.receive(request, context)
        buffers = shared.get("buffers")
        current = torch.from_numpy(buffers.values) if isinstance(buffers, Dense) else self.trainer.model.buffers
        self.executor.set_model(self.w, current)
        return broadcast

    def settings(self, request: TrainRequest) -> RoundSettings:
        """What a request says about its round."""
        layout, optimiser = self.worker.plain.layout, self.trainer.optimiser
        what, effort = (request.round, request.eta), (request.local_steps, request.batch_size)
        return RoundSettings(*what, *effort, layout, request.clients, request.coarseness, optimiser)


def _needs_model(request: TrainRequest) -> bytes:
    return TrainReply(request.round, request.client, needs_model=True).to_bytes()


def _job(request: TrainRequest, client: int, steps: int, slot: Slot, store: StateStore) -> ClientJob:
    """A client's part of a job; its last upload is lost if the server says that it never arrived."""
    last = store.last_upload(client)
    lost = None if last.round == request.accepted else last.parts
    return ClientJob(client, steps, slot, last.round, lost, request.personal)


def _in_turn(requests: Collection[TrainRequest]) -> list[TrainRequest]:
    """One of those that bring the model in full, which all bring the same; then those that need least going back."""
    whole = [request for request in requests if request.how == "model"]
    others = [request for request in requests if request.how != "model"]
    return whole[:1] + sorted(others, key=lambda request: -request.base)
