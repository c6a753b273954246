"""Messages damaged, cut, made longer, or noise: each must be valid content or refused, quickly, in little room."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from efl.errors import WireError
from efl.wire import Context, Dense, Field, Layout, Payload, Quantised, RankOneFisher, Signs, Ternary, decode, encode
from efl.wire.context import WORTH_SORTING
from efl.wire.merged import pack_merged, unpack_merged
from efl.wire.reader import CHECKSUM, sealed

LAYOUT = Layout(((16, 1, 3, 3), (16,), (32, 16, 3, 3), (32,), (64, 800), (64,), (10, 64), (10,)))
BYTES_A_PARAMETER = 64  # room a decoder may take besides what the message itself takes
REPEATS = 5  # of a message that took longest so far
WATCHED = 20  # every so many-th message has its memory watched, which is slow

Read = Callable[[bytes, Context], object]


@dataclass(frozen=True)
class Outcome:
    """How many messages were valid and how many refused; the worst time as a multiple of a valid one's, and memory."""

    valid: int
    refused: int
    slowest: float
    room: float

    def __str__(self) -> str:
        return (
            f"{self.valid + self.refused:,} messages: {self.refused:,} refused, {self.valid:,} valid content; slowest "
            f"{self.slowest:.1f} × a valid message, most memory {self.room:.0%} of the bound"
        )


def fuzz(messages: int, seed: int = 0) -> Outcome:
    """Mutate valid payloads of every kind in every way; anything but a `WireError` goes through to the caller."""
    rng = np.random.default_rng(seed)
    samples = [(context, read, blob, _time_of(read, blob, context)) for context, read, blob in _samples()]
    valid = refused = 0
    slowest = room = 0.0
    for number in range(messages):
        context, read, blob, usual = samples[int(rng.integers(len(samples)))]
        damaged = sealed(_damaged(blob[:-CHECKSUM], rng))  # whoever forges a message can also seal it
        if number % WATCHED == 0:
            bound = BYTES_A_PARAMETER * LAYOUT.n + 64 * len(damaged) + 2**20
            room = max(room, _room_for(read, damaged, context) / bound)
        accepted, spent = _tried(read, damaged, context)
        if spent > slowest * usual:  # a page fault or a passing disturbance does not come again
            spent = min(spent, *(_tried(read, damaged, context)[1] for _ in range(REPEATS)))
        slowest = max(slowest, spent / usual)
        valid, refused = valid + accepted, refused + (not accepted)
    return Outcome(valid, refused, slowest, room)


def _tried(read: Read, blob: bytes, context: Context) -> tuple[bool, float]:
    """Whether the message is valid content, and the processor time to find out."""
    began = time.process_time()
    try:
        read(blob, context)
        accepted = True
    except WireError:
        accepted = False
    return accepted, time.process_time() - began


def _room_for(read: Read, blob: bytes, context: Context) -> int:
    """The most memory taken at once."""
    tracemalloc.start()
    _tried(read, blob, context)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def _time_of(read: Read, blob: bytes, context: Context) -> float:
    return float(np.median([_tried(read, blob, context)[1] for _ in range(20)]))


def read_merged(blob: bytes, context: Context) -> list[Ternary]:
    """All increments."""
    return list(unpack_merged(blob, context)[1])


def _samples() -> Iterator[tuple[Context, Read, bytes]]:
    rng = np.random.default_rng(0)
    fisher = np.exp(3 * rng.normal(size=LAYOUT.n)).astype(np.float32)
    factored = RankOneFisher.of(fisher, LAYOUT)
    at = np.sort(np.argsort(-factored.dense() * np.exp(rng.normal(size=LAYOUT.n)))[: WORTH_SORTING + 500])
    signs = rng.random(len(at)) < 0.5
    ones, few = np.ones(len(LAYOUT.blocks), np.float32), slice(0, 100)
    updates = [
        Ternary(LAYOUT, at[few], signs[few], ones[:1]),
        Ternary(LAYOUT, at, signs, ones[:1]),  # long enough to be coded in classes
        Ternary(LAYOUT, at, signs, ones),
    ]
    payloads: list[Payload] = [
        Dense(fisher),
        Dense(fisher, half=True),
        *updates,
        Field(LAYOUT, None, fisher, fisher),
        Field(LAYOUT, at, fisher[at], fisher[at] - 1, factored),
        Field(LAYOUT, at[few], fisher[at[few]], fisher[at[few]] - 1),
        Signs(fisher > 1),
        Quantised(LAYOUT, np.arange(LAYOUT.n).astype(np.int8) // 2, ones),
    ]
    for context in (Context(LAYOUT), Context(LAYOUT, factored)):
        for payload in payloads:
            yield context, decode, encode(payload, context)
        yield context, read_merged, pack_merged(updates, context)


def _damaged(blob: bytes, rng: np.random.Generator) -> bytes:
    kind = int(rng.integers(6))
    if kind == 0:
        return rng.bytes(int(rng.integers(0, 400)))
    data = bytearray(blob)
    if kind == 1:
        return bytes(data[: int(rng.integers(len(data)))])
    if kind == 2:
        return bytes(data) + rng.bytes(int(rng.integers(1, 1000)))
    reach = len(data) if kind == 3 else min(len(data), 80)  # counts and lengths are at the front
    for _ in range(int(rng.integers(1, 5))):
        where = int(rng.integers(reach))
        if kind == 5:
            data[where:where] = rng.bytes(int(rng.integers(1, 10)))
        else:
            data[where] = int(rng.integers(256))
    return bytes(data)
