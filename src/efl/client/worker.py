"""Runs training and evaluation jobs in one process.

Jobs are small enough to be sent to another process; the model and the clients' rows lie where all processes reach
them. A job's result does not depend on which worker runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.base import Algorithm, LocalWork, Parts, RoundSettings
from efl.algorithms.pipeline import encode_updates, resent_parts
from efl.algorithms.registry import name_of
from efl.client.state_store import RowsFile, Slot
from efl.errors import UserError
from efl.rng import Purpose, seeded_torch
from efl.training.assignment import NO_ROUND, PERSONAL, Assignment
from efl.training.tasks.own import OwnLossError
from efl.training.trainer import Trainer
from efl.wire import Context, Dense, TrainReply, decode, encode
from efl.wire.parts import CODED_BY, coding_context, coding_part, decode_kept, decode_parts

NAMED = 5  # clients that a message names


@dataclass(frozen=True, eq=False)
class Broadcast:
    """What all clients of a round receive alike."""

    settings: RoundSettings
    parts: Mapping[str, bytes]


class ClientJob(NamedTuple):
    """One client's part of a job: steps to do, where its rows are, and what it alone received.

    ``last`` is the round of its last upload, ``lost`` what it sent then, if that never arrived.
    """

    client: int
    steps: int
    slot: Slot
    last: int
    lost: Mapping[str, bytes] | None
    personal: bytes | None


@dataclass(frozen=True, eq=False)
class TrainJob:
    """Clients that train side by side, longest work first."""

    broadcast: Broadcast
    clients: Sequence[ClientJob]


@dataclass(frozen=True)
class TrainResult:
    """One client's result: steps done, the reply, if any, and what it keeps, unless training diverged."""

    client: int
    steps: int
    reply: bytes | None
    kept: Mapping[str, bytes] | None = None
    checksum: int = 0

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """The reply, which may be long, apart from the rest, so that it need not go through a pipe."""
        reply = None if self.reply is None else PickleBuffer(self.reply)
        return _train_result, (self.client, self.steps, reply, self.kept, self.checksum)


def _train_result(client: int, steps: int, reply: Any, kept: Mapping[str, bytes] | None, checksum: int) -> TrainResult:
    return TrainResult(client, steps, None if reply is None else bytes(reply), kept, checksum)


class Worker:
    """The network, the data, the clients' rows, and the model of the round, for one process.

    ``w`` and ``buffers`` hold the model that jobs start from; several processes see the same memory.
    """

    def __init__(self, algorithm: Algorithm, trainer: Trainer, rows: RowsFile) -> None:
        self.algorithm, self.trainer, self.rows = algorithm, trainer, rows
        self.plain = Context(trainer.model.layout)
        self.resent = resent_parts(algorithm)
        self.w, self.buffers = torch.zeros(trainer.model.n), trainer.model.buffers.clone()
        self._broadcast: Broadcast | None = None
        self._received: tuple[Parts, Context] = ({}, self.plain)

    def received(self, broadcast: Broadcast) -> tuple[Parts, Context]:
        """What clients received, decoded once per round, and the context that increments are coded by."""
        if self._broadcast is None or broadcast.parts != self._broadcast.parts:
            parts = decode_parts(broadcast.parts, self.plain, len(self.trainer.model.buffers))
            self._broadcast, self._received = broadcast, (parts, coding_context(parts, self.plain))
        return self._received

    def train(self, job: TrainJob) -> list[TrainResult]:
        """Train some clients side by side; a result for each."""
        work = self._work(job, Purpose.BATCHES)
        with self._training(job):
            uploads = encode_updates(self.algorithm, work, self.algorithm.local_update(work))
        finite, losses = _finite_rows(work), work.losses.tolist()
        return [self._result(job, row, work, upload, losses[row], finite[row]) for row, upload in enumerate(uploads)]

    def evaluate(self, samples: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sums and weights of every metric for each sample, (S, metrics, 2)."""
        return self.trainer.measure(self.w, self.buffers, samples)

    def evaluate_clients(self, clients: Sequence[int]) -> list[NDArray[np.float64]]:
        """The same (metrics, 2) for all test data of each client, where metrics are not sums over samples."""
        return [self.trainer.measure_client(self.w, self.buffers, client) for client in clients]

    def evaluate_own(self, client: ClientJob) -> NDArray[np.float64]:
        """The same for a client with its own personal layers."""
        kept = self.trainer.model.personal
        if client.last != NO_ROUND:
            kept = self.rows.read([client.slot])[PERSONAL][0]
        return self.trainer.measure_client(torch.cat([self.w, kept]), self.buffers, client.client)

    def evaluate_personalised(self, job: TrainJob) -> list[NDArray[np.float64]]:
        """Each client's metrics (metrics, 2) with its personalised model; nothing is sent, stored or billed.

        Algorithms without personalised models are judged by what E steps of plain SGD make of the global one: the steps
        of some, which correct for how a client differs, would keep it from fitting.
        """
        work = self._personalising(job)
        models, buffers, clients = work.client_models, work.rows.buffers, [one.client for one in job.clients]
        return [self.trainer.measure_client(models[row], buffers[row], client) for row, client in enumerate(clients)]

    def personalised(self, job: TrainJob) -> tuple[Tensor, Tensor]:
        """The personalised model of a job's only client, and its float buffers."""
        work = self._personalising(job)
        return work.client_models[0], work.rows.buffers[0]

    def _personalising(self, job: TrainJob) -> LocalWork:
        """The work that makes personalised models, done."""
        work = self._work(job, Purpose.OWN_MODEL)
        with self._training(job):
            if self.algorithm.personalised:
                self.algorithm.local_update(work)
            else:
                work.train()
        return work

    def _work(self, job: TrainJob, purpose: Purpose) -> LocalWork:
        shared, _ = self.received(job.broadcast)
        buffers = len(self.trainer.model.buffers)
        assignments = [
            Assignment(
                client.client,
                client.steps,
                client.last,
                None if client.lost is None else decode_kept(client.lost, self.plain, buffers),
                None if client.personal is None else decode(client.personal, self.plain),
            )
            for client in job.clients
        ]
        return self.trainer.work(
            assignments,
            self.w,
            job.broadcast.settings,
            self.rows.read([client.slot for client in job.clients]),
            {name: part for name, part in shared.items() if name != "buffers"},
            self.buffers,
            purpose,
        )

    def _result(
        self, job: TrainJob, row: int, work: LocalWork, upload: Parts, loss: float, finite: bool
    ) -> TrainResult:
        client, round_, steps = job.clients[row], job.broadcast.settings.round, int(work.steps[row])
        if steps < client.steps and not self.algorithm.uses_incomplete:
            return TrainResult(client.client, steps, None)
        if not finite:
            reply = TrainReply(round_, client.client, steps, loss, diverged=True)
            return TrainResult(client.client, steps, reply.to_bytes())
        shared, context = self.received(job.broadcast)
        parts = {name: encode(payload, context) for name, payload in upload.items()}
        if work.model.buffers.numel():
            flat = Context.flat(len(work.model.buffers))
            parts["buffers"] = encode(Dense(work.rows.buffers[row].cpu().numpy()), flat)
        reply = TrainReply(round_, client.client, steps, loss, parts, recovered=bool(client.lost))
        kept = {name: parts[name] for name in self.resent}
        if kept and (coded_by := coding_part(shared)) is not None:
            kept[CODED_BY] = job.broadcast.parts[coded_by]
        rows = [work.state[name][row] for name in self.rows.lengths]
        checksum = self.rows.write(client.slot.write, rows) if rows else 0
        return TrainResult(client.client, steps, reply.to_bytes(), kept, checksum)

    def _seeded_layers(self, job: TrainJob) -> AbstractContextManager[None]:
        """Within, random layers draw numbers of their own; where clients share operations, there are no such layers."""
        if self.trainer.batched:
            return nullcontext()
        seed = self.trainer.layer_seed(job.broadcast.settings.round, job.clients[0].client)
        return seeded_torch(seed, self.trainer.model.device)

    @contextmanager
    def _training(self, job: TrainJob) -> Iterator[None]:
        """Within, models may diverge without warnings: that is found out and reported in one line."""
        with np.errstate(over="ignore", invalid="ignore"), self._seeded_layers(job):
            try:
                yield
            except (UserError, OwnLossError) as error:  # somebody else's function, or an optimiser that does not fit
                clients = ", ".join(str(one.client) for one in job.clients[:NAMED]) + ", …" * (len(job.clients) > NAMED)
                where = f"{name_of(self.algorithm)}, round {job.broadcast.settings.round}, client {clients}"
                raise UserError(f"{where}: {error}") from error


def _finite_rows(work: LocalWork) -> list[bool]:
    """Which rows are free of NaN and infinity; a sum is finite only if every entry is."""
    total = work.losses.numpy()
    for rows in (work.W, work.rows.buffers.cpu(), *work.state.values()):
        if rows.shape[1]:
            total = total + rows.sum(1).numpy()
    finite: list[bool] = np.isfinite(total).tolist()
    return finite
