"""The client side: bytes in, bytes out.

A `ClientHost` answers for one client or for many that live on the same machine. It keeps their state rows and one
copy of the model, the newest it has been told, from which each client starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from efl.algorithms.base import Algorithm, LocalWork, Parts, RoundSettings
from efl.engine.state import NEVER, LastUpload, StateStore
from efl.engine.work import Workshop
from efl.errors import WireError
from efl.models import FlatModel
from efl.wire import Dense, Field, Message, decode, encode

WHOLE_MODEL = -1


class ClientHost:
    """Answers requests with the work of its clients."""

    def __init__(self, algorithm: Algorithm, workshop: Workshop) -> None:
        self.algorithm, self.workshop = algorithm, workshop
        self.store = StateStore(algorithm.client_state(), workshop.model.n)
        self.w = torch.zeros(workshop.model.n)
        self.version = NEVER
        self._decoded: tuple[Mapping[str, bytes], Parts] = ({}, {})

    def answer(self, requests: Mapping[int, bytes], steps: Mapping[int, int]) -> dict[int, bytes]:
        """Replies of the clients that have something to say; ``steps`` is what each can do before time is up."""
        messages = {client: Message.from_bytes(blob, "request") for client, blob in requests.items()}
        able = {client: steps[client] for client, message in messages.items() if self._may_send(message, steps[client])}
        replies: dict[int, bytes] = {}
        for group in self.workshop.groups(able):
            replies |= self._answer_group(group, [steps[client] for client in group], messages)
        return replies

    def _may_send(self, request: Message, steps: int) -> bool:
        return steps > 0 and (self.algorithm.uses_incomplete or steps >= request.number("local_steps"))

    def _answer_group(self, group: list[int], steps: list[int], messages: Mapping[int, Message]) -> dict[int, bytes]:
        for client in group:
            self._catch_up(messages[client])
        first = messages[group[0]]
        shared = self._shared_parts(first)
        settings = self._settings(first)
        buffers = shared.pop("buffers", None)
        work = self.workshop.work(
            group,
            steps,
            self.w,
            torch.from_numpy(buffers.values) if isinstance(buffers, Dense) else self.workshop.model.buffers,
            settings,
            self.store.read(group),
            [self._lost(client, messages[client]) for client in group],
            shared,
        )
        uploads = train(self.algorithm, self.workshop, group, work)
        losses, finite = work.losses.tolist(), _finite_rows(work)
        replies: dict[int, bytes] = {}
        for row, client in enumerate(group):
            header: dict[str, Any] = {"round": settings.round, "client": client}
            header |= {"steps": steps[row], "loss": losses[row]}
            if not finite[row]:
                replies[client] = Message("reply", {**header, "diverged": True}).to_bytes()
                continue
            if work.lost[row]:
                header["recovered"] = True
            parts = _encoded(work, row, uploads[row])
            replies[client] = Message("reply", header, parts).to_bytes()
            kept = {name: parts[name] for name in self.algorithm.remembers}
            rows = {name: matrix[row] for name, matrix in work.state.items()}
            self.store.write(client, rows, LastUpload(settings.round, kept))
        return replies

    def _catch_up(self, request: Message) -> None:
        """Apply the broadcasts that this host has not seen; ``base`` is the version before the first of them."""
        base, version = int(request.number("base")), int(request.number("version"))
        if self.version == version:
            return
        missed = list(request.log)
        if base != WHOLE_MODEL:
            if not base <= self.version <= version or len(missed) != version - base:
                raise WireError(f"broadcasts {base} … {version} do not continue version {self.version}")
            missed = missed[self.version - base :]
        w = self.w.numpy()
        for blob in missed:
            payload = decode(blob, len(w))
            if isinstance(payload, Field):
                raise WireError("a broadcast must be a model or an increment")
            w = payload.onto(w)
        self.w, self.version = torch.from_numpy(w), version

    def _shared_parts(self, request: Message) -> Parts:
        """What every client of a round is told alike; decoded once."""
        if self._decoded[0] != request.parts:
            self._decoded = (request.parts, decoded_parts(request.parts, self.workshop.model))
        return dict(self._decoded[1])

    def _settings(self, request: Message) -> RoundSettings:
        return RoundSettings(
            round=int(request.number("round")),
            eta=float(request.number("eta")),
            local_steps=int(request.number("local_steps")),
            batch_size=int(request.number("batch_size")),
            segments=self.workshop.model.segments,
        )

    def _lost(self, client: int, request: Message) -> Parts | None:
        """What the client sent last, if the server says that it never arrived."""
        last = self.store.last_upload(client)
        if last.round == int(request.number("accepted")):
            return None
        return decoded_parts(last.parts, self.workshop.model)


def decoded_parts(blobs: Mapping[str, bytes], model: FlatModel) -> Parts:
    """The payloads of a message: vectors as long as the model, but for its float buffers."""
    return {name: decode(blob, len(model.buffers) if name == "buffers" else model.n) for name, blob in blobs.items()}


def train(algorithm: Algorithm, workshop: Workshop, group: list[int], work: LocalWork) -> list[Parts]:
    """`local_update` with random layers, if any, drawing from the client's own stream."""
    if workshop.batched:
        return algorithm.local_update(work)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(workshop.layer_seed(work.settings.round, group[0]))
        return algorithm.local_update(work)


def _encoded(work: LocalWork, row: int, upload: Parts) -> dict[str, bytes]:
    parts = {name: encode(payload) for name, payload in upload.items()}
    if work.model.buffers.numel():
        parts["buffers"] = encode(Dense(work.rows.buffers[row].numpy()))
    return parts


def _finite_rows(work: LocalWork) -> list[bool]:
    """Which rows are free of NaN and infinity; a sum is finite only if every entry is."""
    total = work.losses + work.W.sum(1) + work.rows.buffers.sum(1)
    for rows in work.state.values():
        total = total + rows.sum(1)
    finite: list[bool] = torch.isfinite(total).tolist()
    return finite
