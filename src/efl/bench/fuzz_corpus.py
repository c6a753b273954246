"""Messages to begin with: honest ones of every kind, and hostile ones that are small but ask for much."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire import (
    Context,
    Dense,
    EvaluateReply,
    EvaluateRequest,
    Field,
    Lattice,
    Limits,
    OnSupport,
    Payload,
    Quantised,
    RankOneFisher,
    RestoreStateRequest,
    SaveStateRequest,
    Signs,
    StateReply,
    Ternary,
    TrainReply,
    TrainRequest,
    decode,
    decode_request,
    encode,
    received,
)
from efl.wire.context import WORTH_SORTING
from efl.wire.limits import most_broadcasts
from efl.wire.merged import most_merged, pack_merged
from efl.wire.payloads.field import FIELD
from efl.wire.payloads.lattice import LATTICE
from efl.wire.payloads.ternary import TERNARY
from efl.wire.protocol import Reply, Request
from efl.wire.reader import Reader, sealed, varints

SMALL = Layout(((16, 1, 3, 3), (16,), (64, 80), (64,), (10, 64), (10,)))
MLP = Layout(((200, 784), (200,), (200, 200), (200,), (10, 200), (10,)))
BUFFERS = 20

Content = tuple[Request | Reply | None, list[Payload]]


@dataclass(frozen=True, eq=False)
class Receiver:
    """One side of an exchange about a model, with a field to code by or without: it reads whatever comes."""

    layout: Layout
    factored: RankOneFisher | None

    @cached_property
    def context(self) -> Context:
        """What it knows."""
        return Context(self.layout, self.factored)

    @cached_property
    def limits(self) -> Limits:
        """How much it takes."""
        return Limits.of(self.layout, BUFFERS)

    def payload(self, blob: bytes) -> Content:
        """A payload by itself."""
        return None, [decode(blob, self.context)]

    def merged(self, blob: bytes) -> Content:
        """Merged broadcasts."""
        return None, [*received("merged", [blob], self.context)]

    def request(self, blob: bytes) -> Content:
        """A request, with all it brings."""
        request = decode_request(blob, self.limits)
        if isinstance(request, SaveStateRequest):
            return request, []
        payloads = self._parts(request.shared)
        payloads += [] if request.personal is None else [decode(request.personal, self.context)]
        if isinstance(request, TrainRequest):
            return request, [*payloads, *received(request.how, request.log, self.context)]
        return request, [*payloads, *received("model", [request.model], self.context)]

    def reply(self, blob: bytes) -> Content:
        """A reply of any type: the first that reads it."""
        for kind in (TrainReply, EvaluateReply):
            try:
                reply = kind.from_bytes(blob, self.limits)
            except WireError:
                continue
            return reply, self._parts(reply.parts) if isinstance(reply, TrainReply) else []
        return StateReply.from_bytes(blob, self.limits), []

    def _parts(self, parts: Any) -> list[Payload]:
        flat = Context.flat(BUFFERS)
        return [decode(blob, flat if name == "buffers" else self.context) for name, blob in parts.items()]


@dataclass(frozen=True, eq=False)
class Sample:
    """Some bytes and who reads them.

    Attributes:
        sealed_at_end: They are a payload, whose checksum comes last.
        pieces: How many payloads or increments there are to decode.
    """

    name: str
    receiver: Receiver
    read: Callable[[bytes], Content]
    blob: bytes
    sealed_at_end: bool
    pieces: int = 1

    @property
    def seconds(self) -> float:
        """About how long it takes at most to read them."""
        return self.pieces * (5e-5 + 2e-9 * self.receiver.layout.n) + 1e-9 * len(self.blob)


def samples(layout: Layout, seed: int = 0) -> Iterator[Sample]:
    """Messages of every kind about one model."""
    rng = np.random.default_rng(seed)
    fisher = np.exp(3 * rng.normal(size=layout.n)).astype(np.float32)
    factored = RankOneFisher.of(fisher, layout)
    likely = np.argsort(-factored.dense() * np.exp(rng.normal(size=layout.n)))
    for receiver in (Receiver(layout, None), Receiver(layout, factored)):
        payloads = [*_honest(layout, fisher, factored, np.sort(likely[: WORTH_SORTING + 100]))]
        updates = [payload for payload in payloads if isinstance(payload, Ternary)]
        merged = pack_merged(updates, receiver.context)
        blobs = [encode(payload, receiver.context) for payload in payloads] + [*_hostile_payloads(layout)]
        for blob in blobs:
            yield Sample(f"payload {blob[0]}", receiver, receiver.payload, blob, True)
        for blob in (merged, *_hostile_merged(receiver.context)):
            (count,) = Reader(blob).varints(1)
            yield Sample("merged", receiver, receiver.merged, blob, True, count)
        yield from _messages(receiver, blobs, merged, fisher)


def _honest(
    layout: Layout, fisher: NDArray[np.float32], factored: RankOneFisher, at: NDArray[np.int64]
) -> Iterator[Payload]:
    signs, few, scales = at % 2 == 0, at[:100], np.ones(len(layout.blocks), np.float32)
    by_row = at // max(layout.blocks[0].columns, 1) % 2 == 0
    yield Dense(fisher)
    yield Dense(fisher, half=True)
    yield Ternary(layout, few, signs[:100], scales[:1])
    yield Ternary(layout, at, signs, scales[:1])  # long enough to be coded in classes
    yield Ternary(layout, at, by_row, scales)
    yield Field(layout, None, fisher, fisher)
    yield Field(layout, at, fisher[at], fisher[at] - 1, factored)
    yield Field(layout, few, fisher[few], fisher[few] - 1)
    yield Signs(fisher > 1)
    codes = at % 7 - 3
    yield Lattice(layout, at[codes != 0], codes[codes != 0].astype(np.int32), 0.25)
    yield Lattice(layout, few, (few**3 % 2**23 + 1).astype(np.int32), 2.0**-20)
    yield Lattice(layout, np.arange(layout.n), np.ones(layout.n, np.int32), 1.0)
    yield Quantised(layout, (np.arange(layout.n) % 255 - 127).astype(np.int8), scales)
    yield OnSupport(layout.n, 7, fisher[: layout.n // 4])


def _hostile_payloads(layout: Layout) -> Iterator[bytes]:
    """A few bytes that stand for as much as can be: every position, rows that all differ, more zeros than expected."""
    n, scale = layout.n, np.ones(1, "<f4").tobytes()
    yield sealed(bytes([LATTICE, 0x0F]) + scale + varints([n // 2, 2, n // 4, n // 2 - n // 4, 0]) + bytes(n // 16 + 1))
    everywhere = bytes([0x0F]) + varints([n, 0])  # one class, in which no place is free
    rows = int(np.count_nonzero([block.columns >= 4 for block in layout.blocks for _ in range(block.rows)]))
    codes = zlib.compress(bytes(rows), 9)
    yield sealed(bytes([TERNARY, 0x0F, 3]) + scale + varints([n, 0, len(codes)]) + codes + varints([0] * 6))
    for entries in (2 * n, 10**6):
        squeezed = zlib.compress(bytes(entries), 9)
        yield sealed(bytes([FIELD, 0]) + everywhere + varints([2**15, 2**15, len(squeezed)]) + squeezed)
    sides = np.arange(sum(block.rows + block.columns for block in layout.blocks)) % 255
    rows = sum(block.rows for block in layout.blocks)
    guess = RankOneFisher(layout, -sides[:rows], -sides[rows:])
    nothing, head = zlib.compress(b""), bytes([FIELD, 1]) + guess.pack()
    tail = varints([2**15, 2**15, len(nothing)]) + nothing
    yield sealed(head + b"\x10" + varints([0] * len(guess.order.bounds)) + tail)
    yield sealed(head + b"\x1f" + everywhere[1:] + tail)


def _hostile_merged(context: Context) -> Iterator[bytes]:
    """As many increments as are taken, of nothing and of everything."""
    layout, scale = context.layout, b"\x01" + np.ones(1, "<f4").tobytes()
    most = most_merged(layout)
    yield sealed(varints([most, 0x0F, 0, 0]) + most * (scale + varints([0, 0])))
    every = np.arange(layout.n)
    whole = Ternary(layout, every, every % 2 == 0, np.ones(1, np.float32))
    yield pack_merged([whole] * 8, context)
    yield pack_merged([whole] * 20, context)


def _messages(receiver: Receiver, blobs: list[bytes], merged: bytes, fisher: NDArray[np.float32]) -> Iterator[Sample]:
    """Whole messages of every type."""
    dense, half, short, update, by_row, full_field, field, _, _, lattice, *_ = blobs
    buffers = encode(Dense(fisher[:BUFFERS]), Context.flat(BUFFERS))
    asked: dict[str, Any] = {"eta": 0.1, "local_steps": 20, "batch_size": 20, "clients": 50}
    shared = {"field": field, "buffers": buffers}
    single = encode(Ternary(receiver.layout, np.arange(1), np.ones(1, bool), np.ones(1, np.float32)), receiver.context)
    most = most_broadcasts(receiver.layout.n)
    catch_ups: list[dict[str, Any]] = [
        {"how": "each", "base": 3, "version": 6, "log": [short, update, by_row]},
        {"how": "each", "base": 0, "version": most, "log": [single] * most},
        {"how": "each", "base": 0, "version": 100, "log": [blobs[14]] * 100, "start": 5},
        {"how": "merged", "base": 3, "version": 6, "log": [merged], "personal": half},
        {"how": "summed", "base": 3, "version": 60, "log": [lattice]},
        {"how": "model", "base": -2, "version": 6, "log": [dense]},
    ]
    requests: list[Request] = [
        *(TrainRequest(7, 3, coarseness=2, accepted=-1, shared=shared, **asked, **catch_up) for catch_up in catch_ups),
        EvaluateRequest(7, 3, dense, {"buffers": buffers}),
        EvaluateRequest(7, 3, half, shared | {"control": full_field}, update, personalised=True, **asked),
        SaveStateRequest(7),
        RestoreStateRequest(7),
    ]
    replies: list[Reply] = [
        TrainReply(7, 3, 20, 0.5, {"update": update, "field": field, "buffers": buffers}),
        TrainReply(7, 3, 20, 0.5, {"update": dense}, recovered=True),
        TrainReply(7, 3, 20, 0.5, {"update": lattice}),
        TrainReply(7, 3, 20, float("nan"), diverged=True),
        TrainReply(7, 3, needs_model=True),
        EvaluateReply(7, 3, {"accuracy": (41.0, 50.0), "loss": (12.5, 50.0)}),
        StateReply(7),
        StateReply(7, "no space left on the device"),
    ]
    for request in requests:
        envelope = request.envelope()
        pieces = 1 + 2 * len(envelope.parts) + len(envelope.log)
        yield Sample(type(request).__name__, receiver, receiver.request, request.to_bytes(), False, pieces)
    for reply in replies:
        yield Sample(type(reply).__name__, receiver, receiver.reply, reply.to_bytes(), False)
