"""The default defence: what a few hostile clients send is shortened, capped and tested before it counts.

Everything is measured by medians over all clients lately heard of, one vote each, which a minority cannot move:

1. An update that is longer than τ medians counts 1/ρ² of itself, where ρ is by how much: what is ten times too long
   counts less than honest work. Where both sides have a memory, the length is that of what an update *means*, memory
   included; else small lies would add up.
2. Shares count up to a multiple of the median, answer rates from half the median on.
3. Of a field, Fisher values and displacements count up to φ medians; one with too many entries does not count.
4. The secant test. Gradients of a convex loss are monotone: going from w̄ to w, descent turns back,
   ⟨x − x̄, w − w̄⟩ < 0, and flipped signs go on. The mean of a client's secants, over the median of all clients', says
   how much its updates count: too little descent, or far too much, is none.
5. Agreement. A model goes where most push it: ⟨x̄, w − w̄⟩ > 0 for each of those it is made of, and less than 0 for who
   pushes against them, whatever else it sends to pass for descent. Its mean over the median is t again; who agrees
   much more than others do is made of their updates.
6. Clients that sent nearly the same of late count together as one, for who colludes sends one lie many times.

What is kept of each client are a few numbers and three sketches (`efl.algorithms.components.sketch`), for the test
needs only inner products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Constraint
from torch import Tensor

from efl.algorithms.components.admission import scaled, scaled_part
from efl.algorithms.components.fields import sizes
from efl.algorithms.components.shares import fade
from efl.algorithms.components.sketch import sketched
from efl.algorithms.components.standing import FIELD, Column, Kept, Standing, no_standing
from efl.algorithms.state import UPDATE, RoundSettings, ServerState, Update
from efl.algorithms.transform import TRANSFORMS, Transform
from efl.settings import AtLeastOne, Positive, Probability
from efl.wire import Field, Lattice, Payload, Ternary

Vector = NDArray[np.float32]
Vectors = NDArray[np.float32]  # a row for each update
Numbers = NDArray[np.float64]
WIDTH = 1021  # of a sketch
ERROR = 3 / sqrt(WIDTH)  # of a cosine of sketches, hardly ever more
FORGETTING = 0.15  # how much a client's last update counts in its means
TESTS = 2  # secants before a client is judged by them
TINY = 1e-30
SECANTS = Column.SECANT, Column.SPREAD, -1.0  # a mean, that of its squares, and the sign which it has in descent
AGREEMENTS = Column.AGREEMENT, Column.AGREEMENT_SPREAD, 1.0


@dataclass(frozen=True, eq=False)
class _Cohort:
    """A round's updates as they are measured, a row each: lengths and sketches, per unit of ηE."""

    updates: Sequence[Update]
    rows: NDArray[np.int64]  # of what is known of their clients
    lengths: Numbers
    sent: Vectors
    memory: Vectors  # what the server believes that each client remembers

    @cached_property
    def meant(self) -> Vectors:
        """What each means, its memory added."""
        return self.memory + self.sent

    @cached_property
    def meant_lengths(self) -> Numbers:
        return _lengths(self.meant)

    @cached_property
    def directions(self) -> Vectors:
        """What each means, of length one."""
        return _over(self.meant, self.meant_lengths)

    @cached_property
    def fields(self) -> list[tuple[list[float], int] | None]:
        """The sizes of each one's field, and how many entries that has."""
        found = [next((p for p in one.parts.values() if isinstance(p, Field)), None) for one in self.updates]
        return [None if field is None else (sizes(field), len(field.fisher)) for field in found]


@TRANSFORMS.register("defence")
class Defence(Transform):
    """See the module.

    Attributes:
        length: τ, how many medians long an update may be.
        field: φ, how many medians a field may have.
        share: How many median shares count.
        rate: What part of the median answer rate counts at least.
        secant: The part of the median secant from which on an update counts in full; 0 leaves the test out.
        secant_most: The multiple of it beyond which an update counts less again: who only pretends to descend pulls too
            strongly.
        agreement: The part of the median agreement from which on an update counts in full; 0 leaves the test out.
        agreement_most: The multiple of it beyond which an update counts less again, and soon nothing: who sends the
            mean of all agrees more than anybody who has data of its own.
        alike: Clients count as one whose updates differ by less than this part of what they usually do, or by less than
            rounding at random makes those differ that mean the same; 0 leaves the test out.
        window: The rounds over which clients have a vote.
        seed: Of the sketches; a server that others attack keeps it to itself.
    """

    length: Positive = 1.5
    field: Positive = 2.0
    share: AtLeastOne = 2.0
    rate: Probability = 0.5
    secant: Probability = 0.4
    secant_most: AtLeastOne = 3.0
    agreement: Probability = 0.2
    agreement_most: AtLeastOne = 1.5
    alike: Probability = 0.25
    window: Annotated[int, Constraint(ge=1)] = 10
    seed: Annotated[int, Constraint(ge=0)] = 0

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """Nobody is known."""
        return no_standing(WIDTH)

    def admit(
        self, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Sequence[Update], ServerState]:
        """Each update as far as it counts."""
        standing = Standing.of(server, [update.client for update in updates])
        models = self._models(updates, server.w)
        cohort = self._measured(updates, server.w, standing, settings)
        _note(cohort, standing, settings)
        medians = standing.medians(settings.round, self.window)
        trust = self._length_factors(cohort, medians)
        fidelity = float(medians[Column.FIDELITY])
        trust *= self._tested(cohort, models, standing) * self._alone(cohort, standing, settings, fidelity)
        _remember(cohort, trust, models, standing)
        counted = [self._counted(cohort, at, part, medians, server.w) for at, part in enumerate(trust.tolist())]
        return counted, server.having(**standing.tensors())

    def _models(self, updates: Sequence[Update], w: Tensor) -> Vectors:
        """A sketch of the model that each update started from."""
        now = sketched(w.numpy(), len(w), WIDTH, self.seed)
        starts = [update.start for update in updates]
        return np.stack([now if one is None else sketched(one.w.numpy(), len(w), WIDTH, self.seed) for one in starts])

    def _measured(self, updates: Sequence[Update], w: Tensor, standing: Standing, settings: RoundSettings) -> _Cohort:
        begun, rows = [update.settings(settings) for update in updates], standing.rows([one.client for one in updates])
        paces = np.array([one.eta * one.local_steps for one in begun])
        lengths, sent = np.empty(len(rows)), np.empty((len(rows), WIDTH), np.float32)
        for at, payload in enumerate(update.sent for update in updates):
            positions = payload.positions if isinstance(payload, Lattice | Ternary) else None
            values = payload.values - w.numpy() if payload.absolute else payload.values
            lengths[at] = sqrt(float(values @ values))
            sent[at] = sketched(values, len(w), WIDTH, self.seed, positions)
        last = standing.numbers[rows, Column.ROUND]
        fading = np.where(last >= 0, fade(settings.clients) ** (_rounds(updates, settings) - last), 0.0)
        fading *= [bool(update.remembered) for update in updates]
        memory = standing.sketches[rows, Kept.MEMORY] * fading.astype(np.float32)[:, None]
        return _Cohort(updates, rows, lengths / paces, sent / paces.astype(np.float32)[:, None], memory)

    def _length_factors(self, cohort: _Cohort, medians: Numbers) -> Numbers:
        """1/ρ² of what is too long, and no more than keeps what it means within bounds."""
        over = cohort.lengths / max(self.length * medians[Column.SENT], TINY)
        factors: Numbers = np.maximum(over, 1.0) ** -2
        bound = self.length * medians[Column.MEANT]
        shortened = cohort.memory + factors.astype(np.float32)[:, None] * cohort.sent
        beyond = _lengths(shortened) / max(bound, TINY)
        for at in np.flatnonzero(beyond > 1).tolist():
            most = _reaching(cohort.memory[at], cohort.sent[at], bound / beyond[at])
            factors[at] = min(factors[at], most)
        return factors

    def _tested(self, cohort: _Cohort, models: Vectors, standing: Standing) -> Numbers:
        """How much each update counts by its client's secants; renews their means."""
        kept, numbers = standing.sketches[cohort.rows], standing.numbers[cohort.rows]
        came, pushed = models - kept[:, Kept.MODELS], kept[:, Kept.UPDATES]
        way = _lengths(came)
        secants = np.einsum("ij,ij->i", cohort.directions - pushed, came) / np.maximum(way, TINY)
        agreements = np.einsum("ij,ij->i", pushed, came) / np.maximum(way * _lengths(pushed), TINY)
        tested = (numbers[:, Column.KNOWN] > 0) & (way > 0)
        numbers[tested, Column.TESTS] += 1
        rates = tested * np.maximum(FORGETTING, 1 / np.maximum(numbers[:, Column.TESTS], 1))
        for found, (mean, spread, _) in ((secants, SECANTS), (agreements, AGREEMENTS)):
            numbers[:, mean] += (found - numbers[:, mean]) * rates
            numbers[:, spread] += (found**2 - numbers[:, spread]) * rates
        standing.numbers[cohort.rows] = numbers
        known = standing.numbers[standing.numbers[:, Column.TESTS] >= TESTS]
        descends = _judged(numbers, known, SECANTS, self.secant, self.secant_most, 2)
        return descends * _judged(numbers, known, AGREEMENTS, self.agreement, self.agreement_most, 4)

    def _alone(self, cohort: _Cohort, standing: Standing, settings: RoundSettings, fidelity: float) -> Numbers:
        """1/m where m clients sent the same of late, nearly: they count together as one.

        Nearly is much nearer to each other than clients usually are to their nearest; or, where updates are rounded at
        random, than honest ones can be: if two mean the same, each with noise of its own, their cosine is the fidelity.
        """
        last = _over(cohort.sent, _lengths(cohort.sent))
        standing.sketches[cohort.rows, Kept.LAST] = last
        heard = np.flatnonzero(standing.lately(settings.round, self.window))
        cosines = standing.sketches[heard, Kept.LAST] @ last.T
        cosines[np.searchsorted(heard, cohort.rows), np.arange(len(last))] = -1.0  # itself
        standing.numbers[cohort.rows, Column.NEAREST] = cosines.max(0)
        usual = float(np.median(standing.numbers[heard, Column.NEAREST]))
        least = min(1 - (1 - usual) * self.alike, fidelity + ERROR) if self.alike else 1.0
        alike: Numbers = (cosines > least).sum(0, dtype=np.float64)
        return 1 / (1 + alike)

    def _counted(self, cohort: _Cohort, at: int, trust: float, medians: Numbers, w: Tensor) -> Update:
        update, field = cohort.updates[at], cohort.fields[at]
        parts = {
            name: part if name in (UPDATE, "buffers") else self._part(field, part, trust, medians)
            for name, part in update.parts.items()
        }
        return replace(
            update,
            parts=parts,
            trust=trust,
            counts_as=scaled(update.delta, trust, w),
            response_rate=max(update.response_rate, self.rate * medians[Column.RATE]),
        )

    def _part(self, field: tuple[list[float], int] | None, part: Payload, trust: float, medians: Numbers) -> Payload:
        if not isinstance(part, Field) or field is None:
            return scaled_part(part, trust)
        sizes, entries = field
        if entries > self.field * max(medians[Column.ENTRIES], 1.0):
            return scaled_part(part, 0.0, 0.0)
        over = [size / max(self.field * most, TINY) for size, most in zip(sizes, medians[FIELD].tolist(), strict=True)]
        return scaled_part(part, trust / max(1.0, *over[:2]), 1 / max(1.0, *over[2:]))


def _note(cohort: _Cohort, standing: Standing, settings: RoundSettings) -> None:
    """What clients sent, as their votes."""
    numbers = standing.numbers[cohort.rows]
    numbers[:, Column.ROUND] = _rounds(cohort.updates, settings)
    numbers[:, Column.SENT], numbers[:, Column.MEANT] = cohort.lengths, cohort.meant_lengths
    numbers[:, Column.RATE] = [update.response_rate for update in cohort.updates]
    numbers[:, Column.FIDELITY] = [update.fidelity for update in cohort.updates]
    for row, field in zip(numbers, cohort.fields, strict=True):
        if field is not None:
            row[FIELD], row[Column.ENTRIES] = field
    standing.numbers[cohort.rows] = numbers


def _remember(cohort: _Cohort, trust: Numbers, models: Vectors, standing: Standing) -> None:
    """What is known of the clients from now on."""
    kept, numbers = standing.sketches[cohort.rows], standing.numbers[cohort.rows]
    parts = (trust * [update.remembered for update in cohort.updates]).astype(np.float32)
    kept[:, Kept.MEMORY] = cohort.memory + parts[:, None] * cohort.sent
    rates = np.where(numbers[:, Column.KNOWN] > 0, FORGETTING, 1.0).astype(np.float32)[:, None]
    kept[:, Kept.MODELS] += rates * (models - kept[:, Kept.MODELS])
    kept[:, Kept.UPDATES] += rates * (cohort.directions - kept[:, Kept.UPDATES])
    numbers[:, Column.KNOWN] = 1.0
    numbers[:, Column.TRUST] += FORGETTING * (trust - numbers[:, Column.TRUST])
    standing.sketches[cohort.rows], standing.numbers[cohort.rows] = kept, numbers


def _rounds(updates: Sequence[Update], settings: RoundSettings) -> Numbers:
    """In which each update started."""
    return np.array([float(settings.round - update.staleness) for update in updates])


def _judged(
    numbers: Numbers, known: Numbers, kept: tuple[Column, Column, float], least: float, most: float, power: int
) -> Numbers:
    """How much clients count by a mean of theirs over the median of all, t: t/least at most, and (most/t)^power.

    A standard error is added to each: who is only unlucky is not in doubt.
    """
    column, squares, sign = kept
    median = float(np.median(known[:, column])) * sign if len(known) else 0.0
    if median <= 0 or least == 0:
        return np.ones(len(numbers))
    mean, tests = numbers[:, column], numbers[:, Column.TESTS]
    rates = np.maximum(FORGETTING, 1 / np.maximum(tests, 1))
    errors = np.sqrt(np.maximum(numbers[:, squares] - mean**2, 0.0) * rates / (2 - rates))
    parts = np.where(tests >= TESTS, (sign * mean + errors) / median, 1.0)
    return np.minimum(np.clip(parts / least, 0.0, 1.0), (most / np.maximum(parts, TINY)) ** power)


def _lengths(vectors: Vectors) -> Numbers:
    squares: Numbers = np.einsum("ij,ij->i", vectors, vectors).astype(np.float64)
    return np.sqrt(squares)


def _over(vectors: Vectors, lengths: Numbers) -> Vectors:
    """Each vector over its length."""
    return vectors / np.maximum(lengths, TINY).astype(np.float32)[:, None]


def _reaching(memory: Vector, sent: Vector, bound: float) -> float:
    """The largest part b ≤ 1 of what was sent with which ‖memory + b·sent‖ ≤ bound; 0 where there is none."""
    a, b = float(sent @ sent), float(memory @ sent)
    c = float(memory @ memory) - bound**2
    inside = b * b - a * c
    if a <= 0 or inside < 0:
        return min(max(-b / a, 0.0), 1.0) if a > 0 else 1.0
    return min(max((-b + sqrt(inside)) / a, 0.0), 1.0)
