"""The client side: bytes in, bytes out.

A `ClientHost` answers for one client or for many that live on the same machine. It keeps one copy of the model, the
newest it has been told, from which each client starts, and knows where its clients' state lies; the work is done by a
`Crew`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.base import Algorithm, RoundSettings
from efl.algorithms.pipeline import client_state
from efl.client.executors import Alone, Crew, Workers
from efl.client.state_store import LastUpload, Seat, StateStore
from efl.client.worker import Briefing, Hand, Score, ScoreOwn, Task, Train
from efl.errors import WireError
from efl.storage import checksum
from efl.training.trainer import SAMPLES_AT_ONCE, Trainer
from efl.wire import PERSONAL, Context, Dense, Message, received

NO_VERSION = -1  # of a host that has no model yet
BATCHES_A_JOB = 8  # in an evaluation


class ClientHost:
    """Answers requests with the work of its clients."""

    def __init__(self, algorithm: Algorithm, trainer: Trainer, workers: int = 1, state: Path | None = None) -> None:
        self.algorithm, self.trainer = algorithm, trainer
        self.store = StateStore(client_state(algorithm, trainer.model.n), state)
        self.hand = Hand(algorithm, trainer, self.store.file)
        self.w = torch.zeros(trainer.model.n)
        self.version = NO_VERSION
        self.workers = workers
        self.done: dict[int, int] = {}  # steps, by client, in the last answer
        self._crew: Crew | None = None

    @property
    def crew(self) -> Crew:
        """Who does the work."""
        return self.start()

    def start(self) -> Crew:
        """Start the worker processes, if there are to be some; better before this process has threads of its own."""
        if self._crew is None:
            self._crew = Alone(self.hand) if self.workers == 1 else Workers(self.hand, self.workers)
        return self._crew

    def accuracies(self, w: Tensor, buffers: Tensor) -> NDArray[np.float64]:
        """Test accuracy of one model on every client's own test data; NaN for clients that cannot be asked."""
        tests = self.trainer.federation.test
        everyone = np.concatenate(tests)
        size = BATCHES_A_JOB * SAMPLES_AT_ONCE
        self.crew.tell(w, buffers)
        pieces = self.crew.run([Score(everyone[start : start + size]) for start in range(0, len(everyone), size)])
        sizes = np.array([len(test) for test in tests])
        sums = np.add.reduceat(np.concatenate(pieces), np.cumsum(sizes) - sizes)
        accuracies: NDArray[np.float64] = sums / sizes
        return accuracies

    def score_own(
        self, personal: Mapping[int, bytes | None], briefing: Briefing, w: Tensor, buffers: Tensor
    ) -> dict[int, float]:
        """Accuracy of each client's own model after a round of work from ``w``, on its own test data.

        ``personal`` has the clients, and what each alone is told.
        """
        steps = briefing.settings.local_steps
        groups = self.trainer.groups(dict.fromkeys(personal, steps), self.crew.hands)
        self.crew.tell(w, buffers)
        jobs = [
            ScoreOwn(
                briefing,
                [Task(c, steps, self.store.look(c), self.store.last_upload(c).round, None, personal[c]) for c in group],
            )
            for group in groups
        ]
        return dict(zip(chain.from_iterable(groups), chain.from_iterable(self.crew.run(jobs)), strict=True))

    def keep(self, rounds: int) -> None:
        """A checkpoint is about to be written; whoever keeps clients' state elsewhere does so now."""

    def restore(self, rounds: int) -> None:
        """A checkpoint was taken over; whoever keeps clients' state elsewhere takes that over, too."""

    def close(self) -> None:
        """Stop the worker processes, if any."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def answer(self, requests: Mapping[int, bytes], steps: Mapping[int, int]) -> dict[int, bytes]:
        """Replies of the clients that have something to say; ``steps`` is what each can do before time is up."""
        messages = {client: Message.from_bytes(blob, "request") for client, blob in requests.items()}
        self.done = {}
        able = {client: steps[client] for client, message in messages.items() if self._may_send(message, steps[client])}
        replies: dict[int, bytes] = {}
        for client in [client for client in able if not self._can_start(messages[client])]:
            header = {"round": messages[client].number("round"), "client": client, "needs_model": True}
            replies[client] = Message("reply", header).to_bytes()
            del able[client]
        return replies | (self._work({client: messages[client] for client in able}, able) if able else {})

    def _may_send(self, request: Message, steps: int) -> bool:
        return steps > 0 and (self.algorithm.uses_incomplete or steps >= request.number("local_steps"))

    def _work(self, messages: Mapping[int, Message], steps: dict[int, int]) -> dict[int, bytes]:
        first = next(iter(messages.values()))
        shared_parts = {name: blob for name, blob in first.parts.items() if name != PERSONAL}
        briefing = Briefing(self.settings(first), shared_parts)
        shared, context = self.hand.told(briefing)
        for message in _one_whole_model(messages.values()):
            self._catch_up(message, context)
        buffers = shared.get("buffers")
        told = torch.from_numpy(buffers.values) if isinstance(buffers, Dense) else self.trainer.model.buffers
        self.crew.tell(self.w, told)
        seats = {client: self.store.seat(client) for client in messages}
        jobs = [
            Train(briefing, [self._task(messages[c], c, steps[c], seats[c]) for c in group])
            for group in self.trainer.groups(steps, self.crew.hands)
        ]
        replies: dict[int, bytes] = {}
        for outcome in (outcome for outcomes in self.crew.run(jobs) for outcome in outcomes):
            seat = seats[outcome.client]
            self.done[outcome.client] = outcome.steps
            if outcome.reply is not None:
                replies[outcome.client] = outcome.reply
            if outcome.kept is None:
                self.store.decline(seat)
            else:
                upload = LastUpload(briefing.settings.round, outcome.kept)
                self.store.accept(outcome.client, seat, outcome.checksum, upload)
        return replies

    def _can_start(self, request: Message) -> bool:
        """Whether the model this request builds on is here, or can be made: the first one, if it is the server's."""
        if request.header.get("how") == "model":
            return True
        if self.version == NO_VERSION:
            return request.header.get("start") == checksum(self.trainer.model.w.numpy())
        return request.number("base") <= self.version <= request.number("version")

    def _catch_up(self, request: Message, context: Context) -> None:
        """Apply the broadcasts that this host has not seen; ``base`` is the version before the first of them.

        A whole model is always taken: a server that was put back to an earlier round counts some versions twice.
        """
        base, version, how = int(request.number("base")), int(request.number("version")), str(request.header.get("how"))
        if self.version == version and how != "model":
            return
        changes = received(how, request.log, context)
        if how != "model":
            if self.version == NO_VERSION:
                self.w, self.version = self.trainer.model.w.clone(), 0
            if not base <= self.version <= version or len(changes) != version - base:
                raise WireError(f"broadcasts {base} … {version} do not continue version {self.version}")
            changes = changes[self.version - base :]
        w = self.w.numpy()
        for change in changes:
            w = change.onto(w)
        self.w, self.version = torch.from_numpy(w), version

    def settings(self, request: Message) -> RoundSettings:
        """What a request says about its round."""
        return RoundSettings(
            round=int(request.number("round")),
            eta=float(request.number("eta")),
            local_steps=int(request.number("local_steps")),
            batch_size=int(request.number("batch_size")),
            layout=self.hand.plain.layout,
        )

    def _task(self, request: Message, client: int, steps: int, seat: Seat) -> Task:
        """What is asked of a client; what it sent last is lost if the server says that it never arrived."""
        last = self.store.last_upload(client)
        lost = None if last.round == int(request.number("accepted")) else last.parts
        return Task(client, steps, seat, last.round, lost, request.parts.get(PERSONAL))


def _one_whole_model(requests: Collection[Message]) -> list[Message]:
    """The requests without those that tell the model in full, but for the first: they all tell the same."""
    whole = [request for request in requests if request.header.get("how") == "model"]
    return whole[:1] + [request for request in requests if request.header.get("how") != "model"]
