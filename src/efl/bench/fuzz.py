"""Messages damaged, grown, deeply nested or forged: each must be valid content or refused, quickly, in little room."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

import numpy as np

from efl.bench.fuzz_corpus import MLP, SMALL, Content, Sample, samples
from efl.bench.fuzz_mutations import mutated
from efl.errors import WireError
from efl.layout import Layout
from efl.wire import Dense, Field, Lattice, OnSupport, Payload, Ternary, decode, encode

USUAL = 1e-4  # seconds; messages that take longer are tried less often, in proportion
WATCHED = 100  # every so many-th message has its memory measured, which is slow
SUSPECT = 0.01  # seconds; a message that takes longer has its time taken again and its memory measured
REPEATS = 8  # what delays a message in passing does not delay it every time
SECONDS = 0.05  # that a message may take
FIXED_ROOM = 64 * 2**20  # bytes that a message may take, and
ROOM_PER_MODEL = 8  # models
SENT_AGAIN = 4  # payloads of a message, at most
SHOWN = 5  # failures


@dataclass
class Outcome:
    """What came of all messages.

    Attributes:
        accepted: Messages that were valid content.
        refused: Messages that were refused with a `WireError`.
        crashed: Other exceptions.
        wrong: Messages that were accepted but are not valid content.
        slowest: Seconds of processor time that a message took at most.
        slowest_name: What kind of message that was.
        room: Bytes that a message took at most.
        seconds: Processor time of everything, mutating and checking included.
        failures: What was wrong with the first few.
    """

    accepted: int = 0
    refused: int = 0
    crashed: int = 0
    wrong: int = 0
    slowest: float = 0.0
    slowest_name: str = ""
    room: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every message was handled as it should be."""
        return not self.crashed and not self.wrong and self.slowest <= SECONDS and self.room <= most_room(MLP)

    def fail(self, why: str) -> None:
        """Remember a failure, if it is one of the first."""
        if len(self.failures) < SHOWN:
            self.failures.append(why)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.accepted + self.refused + self.crashed:,} messages in {self.seconds:.0f} s of processor time: "
                f"{self.refused:,} refused, {self.accepted:,} valid content",
                f"other exceptions: {self.crashed}; wrongly accepted: {self.wrong}",
                f"slowest message: {1e3 * self.slowest:.1f} ms, {self.slowest_name} (limit {1e3 * SECONDS:.0f} ms)",
                f"most memory: {self.room / 2**20:.1f} MB (limit {most_room(MLP) / 2**20:.1f} MB)",
                *self.failures,
            ]
        )


def most_room(layout: Layout) -> int:
    """The most bytes that a message about a model may take."""
    return FIXED_ROOM + ROOM_PER_MODEL * 4 * layout.n


def fuzz(messages: int, seed: int = 0, layouts: Sequence[Layout] = (SMALL, MLP)) -> Outcome:
    """Mutate messages of every kind in every way, and read them as server and clients do.

    Args:
        messages: How many to try.
        seed: Of the mutations.
        layouts: The models that messages are about.

    Returns:
        What came of them; ``passed`` says whether all is well.
    """
    random, outcome, began = Random(seed), Outcome(), time.process_time()
    corpus = [sample for layout in layouts for sample in samples(layout)]
    for sample in corpus:  # as they are, hostile ones among them
        _try(sample, sample.blob, outcome, watched=True)
    weights = [1 / max(USUAL, sample.seconds) for sample in corpus]
    chosen = random.choices(corpus, cum_weights=list(accumulate(weights)), k=max(0, messages - len(corpus)))
    for number, sample in enumerate(chosen):
        blob = mutated(sample.blob, sample.sealed_at_end, random)
        _try(sample, blob, outcome, watched=number % WATCHED == 0)
    outcome.seconds = time.process_time() - began
    return outcome


def _try(sample: Sample, blob: bytes, outcome: Outcome, *, watched: bool) -> None:
    number = outcome.accepted + outcome.refused + outcome.crashed
    began = time.process_time()
    try:
        content = sample.read(blob)
    except WireError:
        content = None
        outcome.refused += 1
    except Exception as error:
        outcome.crashed += 1
        outcome.fail(f"message {number}, {sample.name}: {error!r:.200}")
        return
    spent = time.process_time() - began
    suspect = spent > SUSPECT
    if spent > max(SUSPECT, outcome.slowest):
        spent = min(spent, *(_cost(sample, blob)[0] for _ in range(REPEATS)))
        if spent > outcome.slowest:
            outcome.slowest, outcome.slowest_name = spent, sample.name
    if watched or suspect:
        outcome.room = max(outcome.room, _cost(sample, blob, measure_memory=True)[1])
    if content is None:
        return
    outcome.accepted += 1
    try:
        check(sample, content, thoroughly=watched)
    except Exception as error:
        outcome.wrong += 1
        outcome.fail(f"message {number}, {sample.name}, accepted: {error!r:.200}")


def _cost(sample: Sample, blob: bytes, *, measure_memory: bool = False) -> tuple[float, int]:
    """Seconds, and if asked for, the most bytes taken at once."""
    if measure_memory:
        tracemalloc.start()
    began = time.process_time()
    with suppress(Exception):  # counted where it is first tried
        sample.read(blob)
    spent = time.process_time() - began
    room = tracemalloc.get_traced_memory()[1] if measure_memory else 0
    if measure_memory:
        tracemalloc.stop()
    return spent, room


def check(sample: Sample, content: Content, *, thoroughly: bool) -> None:
    """That what was accepted is valid content; thoroughly, that it survives being sent again.

    Raises:
        ValueError: It is not.
    """
    message, payloads = content
    if message is not None:
        again = type(message).from_bytes(message.to_bytes(), sample.receiver.limits)
        _require(again.to_bytes() == message.to_bytes(), "a message that changes when it is sent again")
    for payload in payloads:
        _check_payload(payload, sample.receiver.layout)
    for payload in payloads[: SENT_AGAIN if thoroughly else 0]:
        if not isinstance(payload, Dense):
            sent_again = decode(encode(payload, sample.receiver.context), sample.receiver.context)
            _require(_same(payload, sent_again), "a payload that changes when it is sent again")


def _check_payload(payload: Payload, layout: Layout) -> None:
    if isinstance(payload, Ternary):
        _check_positions(payload.positions, layout.n)
        _require(len(payload.positive) == len(payload.positions), "a sign for each position")
        _require(payload.positive.dtype == np.bool_ and len(payload.scales) in (1, len(layout.blocks)), "signs, scales")
        _require(bool((payload.scales >= 0).all() and np.isfinite(payload.scales).all()), "finite scales")
    elif isinstance(payload, Lattice):
        _check_positions(payload.positions, layout.n)
        _require(len(payload.codes) == len(payload.positions) and bool(payload.codes.all()), "a code for each position")
        _require(payload.codes.dtype == np.int32 and bool(np.isfinite(payload.values).all()), "finite values")
    elif isinstance(payload, Field):
        count = layout.n if payload.index is None else len(payload.index)
        if payload.index is not None:
            _check_positions(payload.index, layout.n)
        _require(len(payload.fisher) == len(payload.displacement) == count, "a value for each position")
        _require(bool((payload.fisher >= 0).all()), "Fisher values from zero on")
        _require(bool(np.isfinite(payload.fisher).all() and np.isfinite(payload.displacement).all()), "finite values")
        factored = payload.factored_fisher
        _require(factored is None or bool(np.isfinite(factored.values[0]).all()), "a finite guess")
    else:
        size, partly = len(payload.values), isinstance(payload, Dense | OnSupport)
        _require(size == layout.n or (partly and size < layout.n), "a value for each parameter")
        _require(bool(np.isfinite(payload.values).all()), "finite values")


def _check_positions(positions: np.typing.NDArray[np.int64], n: int) -> None:
    _require(positions.dtype == np.int64, "positions of eight bytes")
    _require(not len(positions) or bool(positions[0] >= 0 and positions[-1] < n), "positions in range")
    _require(bool((positions[1:] > positions[:-1]).all()), "positions that increase")


def _same(one: Payload, other: Payload) -> bool:
    """Whether both stand for the same; the values of a short field may be rounded again, if no encoder wrote them."""
    if isinstance(one, Ternary | Lattice) and isinstance(other, Ternary | Lattice):
        return np.array_equal(one.positions, other.positions) and np.array_equal(one.values, other.values)
    if isinstance(one, Field) and isinstance(other, Field):
        if one.index is None or other.index is None:
            return one.index is other.index and np.array_equal(one.fisher, other.fisher)
        return np.array_equal(one.index, other.index)
    return type(one) is type(other) and np.array_equal(one.values, other.values)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"expected {what}")
