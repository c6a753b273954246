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
from efl.storage import checksum
from efl.wire import Context, Dense, Field, Layout, Message, decode, encode, received


class ClientHost:
    """Answers requests with the work of its clients."""

    def __init__(self, algorithm: Algorithm, workshop: Workshop) -> None:
        self.algorithm, self.workshop = algorithm, workshop
        self.plain = Context(layout_of(workshop.model))
        self.store = StateStore(algorithm.client_state(), self.plain.layout)
        self.w = torch.zeros(workshop.model.n)
        self.version = NEVER
        self._decoded: tuple[Mapping[str, bytes], Parts, Context] = ({}, {}, self.plain)

    def answer(self, requests: Mapping[int, bytes], steps: Mapping[int, int]) -> dict[int, bytes]:
        """Replies of the clients that have something to say; ``steps`` is what each can do before time is up."""
        messages = {client: Message.from_bytes(blob, "request") for client, blob in requests.items()}
        able = {client: steps[client] for client, message in messages.items() if self._may_send(message, steps[client])}
        replies: dict[int, bytes] = {}
        for client in [client for client in able if not self._can_start(messages[client])]:
            header = {"round": messages[client].number("round"), "client": client, "needs_model": True}
            replies[client] = Message("reply", header).to_bytes()
            del able[client]
        for group in self.workshop.groups(able):
            replies |= self._answer_group(group, [steps[client] for client in group], messages)
        return replies

    def _may_send(self, request: Message, steps: int) -> bool:
        return steps > 0 and (self.algorithm.uses_incomplete or steps >= request.number("local_steps"))

    def _answer_group(self, group: list[int], steps: list[int], messages: Mapping[int, Message]) -> dict[int, bytes]:
        first = messages[group[0]]
        shared, context = self._shared_parts(first)
        for client in group:
            self._catch_up(messages[client], context)
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
            parts = _encoded(work, row, uploads[row], context)
            replies[client] = Message("reply", header, parts).to_bytes()
            kept = {name: uploads[row][name] for name in self.algorithm.remembers}
            rows = {name: matrix[row] for name, matrix in work.state.items()}
            self.store.write(client, rows, LastUpload(settings.round, kept))
        return replies

    def _can_start(self, request: Message) -> bool:
        """Whether the model this request builds on is here, or can be made: the first one, if it is the server's."""
        if self.version != NEVER or request.header.get("how") == "model":
            return True
        return request.header.get("start") == checksum(self.workshop.model.w.numpy())

    def _catch_up(self, request: Message, context: Context) -> None:
        """Apply the broadcasts that this host has not seen; ``base`` is the version before the first of them."""
        base, version, how = int(request.number("base")), int(request.number("version")), str(request.header.get("how"))
        if self.version == version:
            return
        changes = received(how, request.log, context)
        if how != "model":
            if self.version == NEVER:
                self.w, self.version = self.workshop.model.w.clone(), 0
            if not base <= self.version <= version or len(changes) != version - base:
                raise WireError(f"broadcasts {base} … {version} do not continue version {self.version}")
            changes = changes[self.version - base :]
        w = self.w.numpy()
        for change in changes:
            w = change.onto(w)
        self.w, self.version = torch.from_numpy(w), version

    def _shared_parts(self, request: Message) -> tuple[Parts, Context]:
        """What every client of a round is told alike, decoded once, and the field to code by."""
        if self._decoded[0] != request.parts:
            parts = decoded_parts(request.parts, self.workshop.model, self.plain)
            self._decoded = (request.parts, parts, coding_context(parts, self.plain))
        _, parts, context = self._decoded
        return dict(parts), context

    def _settings(self, request: Message) -> RoundSettings:
        return RoundSettings(
            round=int(request.number("round")),
            eta=float(request.number("eta")),
            local_steps=int(request.number("local_steps")),
            batch_size=int(request.number("batch_size")),
            layout=self.plain.layout,
        )

    def _lost(self, client: int, request: Message) -> Parts | None:
        """What the client sent last, if the server says that it never arrived."""
        last = self.store.last_upload(client)
        if last.round == int(request.number("accepted")):
            return None
        return last.parts


def layout_of(model: FlatModel) -> Layout:
    """The model's tensors, as the wire sees them."""
    return Layout(tuple(spec.shape for spec in model.layout))


def decoded_parts(blobs: Mapping[str, bytes], model: FlatModel, context: Context) -> Parts:
    """The payloads of a message: vectors as long as the model, but for its float buffers."""
    buffers = Context.flat(len(model.buffers))
    return {name: decode(blob, buffers if name == "buffers" else context) for name, blob in blobs.items()}


def coding_context(shared: Parts, plain: Context) -> Context:
    """What increments are coded by in a round: the outline of the field that everybody was told, if there was one."""
    field = shared.get("field")
    return Context(plain.layout, field.outline) if isinstance(field, Field) and field.outline is not None else plain


def train(algorithm: Algorithm, workshop: Workshop, group: list[int], work: LocalWork) -> list[Parts]:
    """`local_update` with random layers, if any, drawing from the client's own stream."""
    if workshop.batched:
        return algorithm.local_update(work)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(workshop.layer_seed(work.settings.round, group[0]))
        return algorithm.local_update(work)


def _encoded(work: LocalWork, row: int, upload: Parts, context: Context) -> dict[str, bytes]:
    parts = {name: encode(payload, context) for name, payload in upload.items()}
    if work.model.buffers.numel():
        parts["buffers"] = encode(Dense(work.rows.buffers[row].numpy()), Context.flat(len(work.model.buffers)))
    return parts


def _finite_rows(work: LocalWork) -> list[bool]:
    """Which rows are free of NaN and infinity; a sum is finite only if every entry is."""
    total = work.losses + work.W.sum(1) + work.rows.buffers.sum(1)
    for rows in work.state.values():
        total = total + rows.sum(1)
    finite: list[bool] = torch.isfinite(total).tolist()
    return finite
