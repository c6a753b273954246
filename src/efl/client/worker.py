"""The work itself: what a process does for some clients in a round, and the looks at how good models are.

A `Hand` is one process's pair of hands. What it does is described by a `Job`, small enough to be sent to another
process; models and rows lie where all hands reach them. A job's result does not depend on whose hands did it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from efl.algorithms.base import Algorithm, LocalWork, Parts, RoundSettings
from efl.algorithms.pipeline import encode_updates, resent_parts
from efl.client.state_store import RowsFile, Seat
from efl.models import FlatModel
from efl.rng import Purpose, seeded_torch
from efl.training.local_work import Assignment
from efl.training.trainer import Trainer
from efl.wire import Context, Dense, Field, Message, decode, encode

Result_co = TypeVar("Result_co", covariant=True)


@dataclass(frozen=True)
class Task:
    """What a client is asked: steps to do, and what it alone was told.

    ``last`` is the round of its last upload, ``lost`` what it sent then, if that never arrived.
    """

    client: int
    steps: int
    seat: Seat
    last: int
    lost: Mapping[str, bytes] | None
    personal: bytes | None


@dataclass(frozen=True)
class Outcome:
    """What came of a task: steps done, the reply, if there is one, and what is kept, unless numbers were not finite."""

    client: int
    steps: int
    reply: bytes | None
    kept: Mapping[str, bytes] | None = None
    checksum: int = 0

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """The reply, which may be long, apart from the rest, so that it need not go through a pipe."""
        reply = None if self.reply is None else PickleBuffer(self.reply)
        return _outcome, (self.client, self.steps, reply, self.kept, self.checksum)


def _outcome(client: int, steps: int, reply: Any, kept: Mapping[str, bytes] | None, checksum: int) -> Outcome:
    return Outcome(client, steps, None if reply is None else bytes(reply), kept, checksum)


@dataclass(frozen=True, eq=False)
class Briefing:
    """What all clients of a round are told alike."""

    settings: RoundSettings
    parts: Mapping[str, bytes]


class Hand:
    """The network, the data, the clients' rows, and the model of the round, for one process.

    ``w`` and ``buffers`` are where the model is told; several processes see the same memory.
    """

    def __init__(self, algorithm: Algorithm, trainer: Trainer, rows: RowsFile) -> None:
        self.algorithm, self.trainer, self.rows = algorithm, trainer, rows
        self.plain = Context(trainer.model.layout)
        self.w, self.buffers = torch.zeros(trainer.model.n), trainer.model.buffers.clone()
        self._briefing: Briefing | None = None
        self._told: tuple[Parts, Context] = ({}, self.plain)

    def told(self, briefing: Briefing) -> tuple[Parts, Context]:
        """What clients are told, decoded once a round, and the field to code by."""
        if self._briefing is None or briefing.parts != self._briefing.parts:
            parts = decoded_parts(briefing.parts, self.trainer.model, self.plain)
            self._briefing, self._told = briefing, (parts, coding_context(parts, self.plain))
        return self._told

    def local_work(self, briefing: Briefing, tasks: Sequence[Task]) -> tuple[LocalWork, list[Parts]]:
        """Do the work of some clients side by side; their uploads."""
        work = self._work(briefing, tasks, Purpose.BATCHES)
        with self._training(briefing, tasks):
            return work, encode_updates(self.algorithm, work, self.algorithm.local_update(work))

    def own_models(self, briefing: Briefing, tasks: Sequence[Task]) -> LocalWork:
        """Work that makes the clients' own models, whatever it would send.

        They are the personal models of algorithms that have them. For all others they are what E steps of plain SGD
        make of the global model: the steps of some, which correct for how a client differs, would keep it from fitting.
        """
        work = self._work(briefing, tasks, Purpose.OWN_MODEL)
        with self._training(briefing, tasks):
            if self.algorithm.personalised:
                self.algorithm.local_update(work)
            else:
                work.train()
        return work

    def _work(self, briefing: Briefing, tasks: Sequence[Task], purpose: Purpose) -> LocalWork:
        shared, _ = self.told(briefing)
        assignments = [
            Assignment(
                task.client,
                task.steps,
                task.last,
                None if task.lost is None else decoded_parts(task.lost, self.trainer.model, self.plain),
                None if task.personal is None else decode(task.personal, self.plain),
            )
            for task in tasks
        ]
        return self.trainer.work(
            assignments,
            self.w,
            briefing.settings,
            self.rows.read([task.seat for task in tasks]),
            {name: part for name, part in shared.items() if name != "buffers"},
            self.buffers,
            purpose,
        )

    @contextmanager
    def _training(self, briefing: Briefing, tasks: Sequence[Task]) -> Iterator[None]:
        """Within, models may run away without a word: that is found out and told in one line."""
        seed = self.trainer.layer_seed(briefing.settings.round, tasks[0].client)
        with (
            np.errstate(over="ignore", invalid="ignore"),
            nullcontext() if self.trainer.batched else seeded_torch(seed, self.trainer.model.device),
        ):
            yield


class Job(Protocol[Result_co]):
    """Something to do, wherever."""

    def run(self, hand: Hand) -> Result_co:
        """Do it."""
        ...


@dataclass(frozen=True, eq=False)
class Train:
    """The work of a group of clients in a round."""

    briefing: Briefing
    tasks: Sequence[Task]

    def run(self, hand: Hand) -> list[Outcome]:
        """Local work, and a reply for each."""
        work, uploads = hand.local_work(self.briefing, self.tasks)
        _, context = hand.told(self.briefing)
        losses, finite = work.losses.tolist(), _finite_rows(work)
        outcomes: list[Outcome] = []
        for row, task in enumerate(self.tasks):
            steps = int(work.steps[row])
            if steps < task.steps and not hand.algorithm.uses_incomplete:
                outcomes.append(Outcome(task.client, steps, None))
                continue
            header: dict[str, Any] = {"round": self.briefing.settings.round, "client": task.client}
            header |= {"steps": steps, "loss": losses[row]}
            if not finite[row]:
                outcomes.append(Outcome(task.client, steps, Message("reply", {**header, "diverged": True}).to_bytes()))
                continue
            if task.lost:
                header["recovered"] = True
            parts = _encoded(work, row, uploads[row], context)
            reply = Message("reply", header, parts).to_bytes()
            names = resent_parts(hand.algorithm)
            kept = parts if context is hand.plain else {name: encode(uploads[row][name], hand.plain) for name in names}
            kept = {name: kept[name] for name in names}
            rows = [work.state[name][row] for name in hand.rows.lengths]
            checksum = hand.rows.write(task.seat.write, rows) if rows else 0
            outcomes.append(Outcome(task.client, steps, reply, kept, checksum))
        return outcomes


@dataclass(frozen=True, eq=False)
class Score:
    """How right the model's answer is to some samples."""

    samples: NDArray[np.int64]

    def run(self, hand: Hand) -> NDArray[np.float64]:
        """0 or 1 for each, for a sequence the share of its positions."""
        return hand.trainer.correct(hand.w, hand.buffers, self.samples)


@dataclass(frozen=True, eq=False)
class ScoreOwn:
    """How good the own models of some clients are, each on its own test data."""

    briefing: Briefing
    tasks: Sequence[Task]

    def run(self, hand: Hand) -> list[float]:
        """An accuracy for each; nothing is sent, stored or billed."""
        work = hand.own_models(self.briefing, self.tasks)
        tests = [hand.trainer.federation.test[task.client] for task in self.tasks]
        return [
            float(hand.trainer.correct(work.personalised_models[row], work.rows.buffers[row], test).mean())
            for row, test in enumerate(tests)
        ]


def decoded_parts(blobs: Mapping[str, bytes], model: FlatModel, context: Context) -> Parts:
    """The payloads of a message: vectors as long as the model, but for its float buffers."""
    buffers = Context.flat(len(model.buffers))
    return {name: decode(blob, buffers if name == "buffers" else context) for name, blob in blobs.items()}


def coding_context(shared: Parts, plain: Context) -> Context:
    """What increments are coded by in a round: the factored Fisher diagonal that all clients got, if there was one."""
    found = (part.factored_fisher for part in shared.values() if isinstance(part, Field))
    factored = next((one for one in found if one is not None), None)
    return plain if factored is None else Context(plain.layout, factored)


def _encoded(work: LocalWork, row: int, upload: Parts, context: Context) -> dict[str, bytes]:
    parts = {name: encode(payload, context) for name, payload in upload.items()}
    if work.model.buffers.numel():
        parts["buffers"] = encode(Dense(work.rows.buffers[row].cpu().numpy()), Context.flat(len(work.model.buffers)))
    return parts


def _finite_rows(work: LocalWork) -> list[bool]:
    """Which rows are free of NaN and infinity; a sum is finite only if every entry is."""
    total = work.losses + work.W.sum(1) + work.rows.buffers.sum(1).cpu()
    for rows in work.state.values():
        total = total + rows.sum(1)
    finite: list[bool] = torch.isfinite(total).tolist()
    return finite
