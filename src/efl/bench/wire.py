"""How short messages are, against the limits that information sets, and how fast they are made.

On positions drawn at random, and on the messages of real training: what the server and its clients really sent is
taken apart, and its length compared with the entropy of the positions when all are equally likely, when those of a
tensor are, and when those of a class of the shared field are; one bit a sign on top.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from efl.algorithms.compression.ternary import largest
from efl.bench.fixtures import coordinator_of, quickest
from efl.federation import Federation
from efl.fleet.clock import Until
from efl.processes import single_threaded
from efl.server.coordinator import Coordinator
from efl.transport.base import Replies, Requests, TrainRequests
from efl.transport.local import LocalTransport
from efl.wire import Context, Layout, Payload, RankOneFisher, Ternary, TrainReply, TrainRequest, decode, encode
from efl.wire.context import entropy
from efl.wire.coordinate_order import CLASSES
from efl.wire.limits import Limits
from efl.wire.logarithm import STEPS
from efl.wire.merged import unpack_merged
from efl.wire.reader import Buffer

DENSITY = 0.01


@dataclass(frozen=True)
class Speed:
    """Random positions of a vector of n: bits a non-zero, that over the limit, Gparam/s, top-k against one reading."""

    n: int
    bits: float
    over_limit: float
    encode: float
    decode: float
    top_k: float

    def __str__(self) -> str:
        return (
            f"n = {self.n:>11,}: {self.bits:.3f} bit/non-zero, {self.over_limit:.4f} × limit, "
            f"encode {self.encode:.2f}, decode {self.decode:.2f} Gparam/s, top-k {self.top_k:.1f} × reading the vector"
        )


def random_positions(n: int) -> Speed:
    """Ternary updates at density 1/100, positions independent of each other."""
    rng = np.random.default_rng(0)
    positions = np.unique(rng.integers(0, n, int(n * DENSITY * 1.005)))
    context = Context(Layout.flat(n))
    update = Ternary(context.layout, positions, rng.random(len(positions)) < 0.5, np.ones(1, dtype=np.float32))
    encoding, blob = quickest(lambda: encode(update, context))
    decoding, _ = quickest(lambda: decode(blob, context))
    vector = np.abs(rng.standard_normal(n, dtype=np.float32))
    selecting, _ = quickest(lambda: largest(vector, int(n * DENSITY)))
    reading, _ = quickest(lambda: vector.max())
    limit = entropy(np.array([n]), np.array([len(positions)])) + len(positions)
    bits = 8 * len(blob)
    giga = n / 1e9
    return Speed(n, bits / len(positions), bits / limit, giga / encoding, giga / decoding, selecting / reading)


@dataclass(frozen=True)
class Messages:
    """Means over the messages of some rounds of training, in one direction; limits in bits a non-zero, with signs.

    ``share`` is what coding takes of a round's time, both directions and both sides together.
    """

    what: str
    parameters: int
    non_zeros: float
    bits: float
    independent: float
    by_tensor: float
    by_octave: float
    by_class: float
    message: float
    share: float

    def __str__(self) -> str:
        return (
            f"{self.what}, {self.parameters:,} parameters, {self.non_zeros:,.0f} non-zeros: "
            f"{self.bits:.3f} bit/non-zero; × the limit given the field's octaves {self.bits / self.by_octave:.3f}, "
            f"octave and tensor {self.bits / self.by_class:.3f}, the tensor alone {self.bits / self.by_tensor:.3f}, "
            f"nothing {self.bits / self.independent:.3f}; update and field {self.message:.3f} bit/parameter; "
            f"coding takes {self.share:.1%} of a round"
        )


def real_messages(
    what: str, federation: Federation, network: str, rounds: int, skip: int, training: Mapping[str, float]
) -> Iterator[Messages]:
    """EFL at density 1/100 both ways, every client in every round: no catch-up. The first rounds are skipped."""
    coordinator = coordinator_of("efl", federation, network, {"cohort": len(federation), **training})
    watcher = _Watcher(coordinator, skip)
    coordinator.transport = watcher
    with single_threaded():
        for round_ in range(rounds):
            if round_ == skip:
                began, watcher.away = time.perf_counter(), 0.0
            coordinator.run_round(round_)
    spent = time.perf_counter() - began - watcher.away
    for direction, found in watcher.seen.items():
        figures = [*(mean(column) for column in zip(*found, strict=True)), watcher.coding / spent]
        yield Messages(f"{what}, {direction}", coordinator.model.n, *figures)


class _Watcher(LocalTransport):
    """A transport that measures what passes through it, from round ``skip`` on."""

    def __init__(self, coordinator: Coordinator, skip: int) -> None:
        local = coordinator.transport
        assert isinstance(local, LocalTransport)
        super().__init__(local.host, local.fleet, local.seed, local.local_steps, local.clock)
        self.coordinator, self.skip = coordinator, skip
        self._requests: Requests | None = None
        self.seen: dict[str, list[tuple[float, ...]]] = {"up": [], "down": []}
        self.coding = 0.0  # seconds that making and reading these messages takes
        self.away = 0.0  # seconds spent on measuring

    def send(self, requests: Requests) -> None:
        """Remember the requests until they are collected."""
        self._requests = requests
        super().send(requests)

    def collect(self, until: Until) -> Replies:
        """Measure requests and replies."""
        replies, requests = super().collect(until), self._requests
        if isinstance(requests, TrainRequests) and requests.round >= self.skip:
            began = time.perf_counter()
            self._measure("down", [TrainRequest.from_bytes(blob, Limits()) for blob in requests.blobs.values()])
            self._measure("up", [TrainReply.from_bytes(blob, Limits()) for blob in replies.blobs.values()])
            self.away += time.perf_counter() - began
        return replies

    def _measure(self, direction: str, messages: Sequence[TrainRequest | TrainReply]) -> None:
        context = self.coordinator.context
        for message in messages:
            if (measured := _measured(message, context)) is not None:
                self.seen[direction].append(measured)
        for message in messages if direction == "up" else messages[:1]:  # all clients here get the same
            for blob, merged in _blobs(message):
                reading, content = quickest(partial(_read, blob, merged, context), repeats=1)
                making, _ = quickest(partial(_made, content, context), repeats=1)
                self.coding += reading + making


def _blobs(message: TrainRequest | TrainReply) -> Iterator[tuple[Buffer, bool]]:
    """The payloads of a message, and whether each is several increments in one."""
    if isinstance(message, TrainReply):
        yield from ((blob, False) for blob in message.parts.values())
    else:
        yield from ((blob, False) for blob in message.shared.values())
        yield from ((blob, message.how == "merged") for blob in message.log)


def _read(blob: Buffer, merged: bool, context: Context) -> list[Payload]:
    return list(unpack_merged(blob, context)[1]) if merged else [decode(blob, context)]


def _made(content: list[Payload], context: Context) -> bytes:
    return b"".join(encode(payload, context) for payload in content)


def _measured(message: TrainRequest | TrainReply, context: Context) -> tuple[float, ...] | None:
    """Of one message: non-zeros, bits of each, the four limits, bits a parameter of update and field."""
    if isinstance(message, TrainReply):
        blob, field = message.parts["update"], message.parts["field"]
    elif message.how != "merged" and len(message.log) == 1:
        blob, field = message.log[0], message.shared["field"]
    else:
        return None
    update = decode(blob, context)
    if not isinstance(update, Ternary) or context.field is None:
        return None
    k, n = len(update.positions), context.layout.n
    order = context.field.order
    by_class = np.diff(np.searchsorted(np.sort(order.place(update.positions)), order.bounds))
    tensors = np.diff(np.append(context.layout.starts, n))
    limits = (
        entropy(np.array([n]), np.array([k])),
        entropy(tensors, context.layout.counts(update.positions)),
        entropy(*_octaves(context.field, update.positions)),
        entropy(np.diff(order.bounds), by_class),
    )
    whole = 8 * (len(blob) + len(field)) / n
    return (float(k), 8 * len(blob) / k, *(limit / k + 1 for limit in limits), whole)


def _octaves(field: RankOneFisher, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many coordinates, and how many non-zeros, lie in each of 24 octaves of the field, whatever their tensor."""
    steps = field.steps(np.arange(field.layout.n))
    octave = np.clip((steps.max() - steps) // STEPS, 0, CLASSES - 1)
    return np.bincount(octave, minlength=CLASSES), np.bincount(octave[positions], minlength=CLASSES)
