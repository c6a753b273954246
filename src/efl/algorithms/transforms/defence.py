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
5. Clients that sent nearly the same of late count together as one, for who colludes sends one lie many times.

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
from efl.algorithms.components.shares import fade
from efl.algorithms.components.sketch import sketched
from efl.algorithms.components.standing import FIELD, Column, Kept, Standing, no_standing
from efl.algorithms.state import UPDATE, RoundSettings, ServerState, Update
from efl.algorithms.transform import TRANSFORMS, Transform
from efl.settings import AtLeastOne, Positive, Probability
from efl.wire import Field, Lattice, Payload, Ternary

Vector = NDArray[np.float32]
WIDTH = 1021  # of a sketch
FORGETTING = 0.15  # how much a client's last update counts in its means
TESTS = 2  # secants before a client is judged by them
TINY = 1e-30


@dataclass(frozen=True, eq=False)
class _Seen:
    """One update as it is measured: its length and sketch, and that of what it means, both per unit of ηE."""

    update: Update
    row: int
    length: float
    sent: Vector
    memory: Vector

    @cached_property
    def meant(self) -> Vector:
        return self.memory + self.sent

    @cached_property
    def meant_length(self) -> float:
        return _length(self.meant)

    @cached_property
    def direction(self) -> Vector:
        """What it means, of length one."""
        return self.meant / np.float32(max(self.meant_length, TINY))

    @cached_property
    def field(self) -> tuple[list[float], int] | None:
        """The sizes of its field, and how many entries that has."""
        found = next((part for part in self.update.parts.values() if isinstance(part, Field)), None)
        return None if found is None else (_sizes(found), len(found.fisher))


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
        alike: Clients count as one whose updates differ by less than this part of what they usually do.
        window: The rounds over which clients have a vote.
        seed: Of the sketches; a server that others attack keeps it to itself.
    """

    length: Positive = 1.5
    field: Positive = 2.0
    share: AtLeastOne = 2.0
    rate: Probability = 0.5
    secant: Probability = 0.4
    secant_most: AtLeastOne = 3.0
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
        model = sketched(server.w.numpy(), len(server.w), WIDTH, self.seed)
        seen = [
            self._seen(*one, server.w, standing, settings)
            for one in zip(updates, standing.rows([u.client for u in updates]), strict=True)
        ]
        for one in seen:
            self._note(one, standing, settings)
        medians = standing.medians(settings.round, self.window)
        tested = zip(self._tested(seen, model, standing), self._alone(seen, standing, settings), strict=True)
        counted = []
        for one, (secant, alone) in zip(seen, tested, strict=True):
            trust = self._length_factor(one, medians) * secant * alone
            counted.append(self._counted(one, trust, medians, server.w))
            self._remember(one, trust, model, standing)
        return counted, server.having(**standing.tensors())

    def _seen(self, update: Update, row: int, w: Tensor, standing: Standing, settings: RoundSettings) -> _Seen:
        pace, n = settings.eta * settings.local_steps, len(w)
        positions = update.sent.positions if isinstance(update.sent, Lattice | Ternary) else None
        values = update.sent.values - w.numpy() if update.sent.absolute else update.sent.values
        last = standing.numbers[row, Column.ROUND]
        faded = fade(settings.clients) ** (settings.round - last) if last >= 0 and update.remembered else 0.0
        memory = standing.sketches[row, Kept.MEMORY] * np.float32(faded)
        sent = sketched(values, n, WIDTH, self.seed, positions) / np.float32(pace)
        return _Seen(update, row, _length(values) / pace, sent, memory)

    def _note(self, one: _Seen, standing: Standing, settings: RoundSettings) -> None:
        """What a client sent, as its vote."""
        update, numbers = one.update, standing.numbers[one.row]
        numbers[Column.ROUND] = settings.round
        numbers[Column.SENT], numbers[Column.MEANT] = one.length, one.meant_length
        numbers[Column.RATE] = update.response_rate
        if one.field is not None:
            numbers[FIELD], numbers[Column.ENTRIES] = one.field

    def _length_factor(self, one: _Seen, medians: NDArray[np.float64]) -> float:
        """1/ρ² of what is too long, and no more than keeps what it means within bounds."""
        sent = one.length / max(self.length * medians[Column.SENT], TINY)
        factor = 1.0 if sent <= 1 else sent**-2
        bound = self.length * medians[Column.MEANT]
        meant = one.meant_length if factor == 1 else _length(one.memory + np.float32(factor) * one.sent)
        beyond = meant / max(bound, TINY)
        return factor if beyond <= 1 else min(factor, _reaching(one, bound / beyond))

    def _tested(self, seen: Sequence[_Seen], model: Vector, standing: Standing) -> list[float]:
        """How much each update counts by its client's secants; renews their means."""
        for one in seen:
            kept, numbers = standing.sketches[one.row], standing.numbers[one.row]
            came = model - kept[Kept.MODELS]
            if numbers[Column.KNOWN] and (way := _length(came)) > 0:
                secant = float((one.direction - kept[Kept.UPDATES]) @ came) / way
                numbers[Column.TESTS] += 1
                rate = max(FORGETTING, 1 / numbers[Column.TESTS])
                numbers[Column.SECANT] += (secant - numbers[Column.SECANT]) * rate
                numbers[Column.SPREAD] += (secant**2 - numbers[Column.SPREAD]) * rate
        known = standing.numbers[standing.numbers[:, Column.TESTS] >= TESTS]
        median = float(np.median(known[:, Column.SECANT])) if len(known) else 0.0
        if median >= 0 or self.secant == 0:
            return [1.0] * len(seen)
        rows = (standing.numbers[one.row] for one in seen)
        parts = [_favourable(row) / median if row[Column.TESTS] >= TESTS else 1.0 for row in rows]
        return [min(max(part / self.secant, 0.0), 1.0, (self.secant_most / max(part, TINY)) ** 2) for part in parts]

    def _alone(self, seen: Sequence[_Seen], standing: Standing, settings: RoundSettings) -> list[float]:
        """1/m where m clients sent the same of late, nearly: they count together as one.

        Nearly is much nearer to each other than clients usually are to their nearest. Rounding without bias makes
        honest updates differ even where what is meant is the same.
        """
        for one in seen:
            standing.sketches[one.row, Kept.LAST] = one.sent / np.float32(max(_length(one.sent), TINY))
        heard = standing.lately(settings.round, self.window)
        cosines = (
            standing.sketches[heard, Kept.LAST] @ np.stack([standing.sketches[one.row, Kept.LAST] for one in seen]).T
        )
        where = np.flatnonzero(heard).tolist()
        for column, one in enumerate(seen):
            cosines[where.index(one.row), column] = -1.0
            standing.numbers[one.row, Column.NEAREST] = cosines[:, column].max()
        usual = float(np.median(standing.numbers[heard, Column.NEAREST]))
        alike = (1 - cosines < (1 - usual) * self.alike).sum(0)
        return [1 / (1 + int(count)) for count in alike]

    def _counted(self, one: _Seen, trust: float, medians: NDArray[np.float64], w: Tensor) -> Update:
        update = one.update
        parts = {
            name: part if name in (UPDATE, "buffers") else self._part(one, part, trust, medians)
            for name, part in update.parts.items()
        }
        return replace(
            update,
            parts=parts,
            trust=trust,
            counts_as=scaled(update.delta, trust, w),
            response_rate=max(update.response_rate, self.rate * medians[Column.RATE]),
        )

    def _part(self, one: _Seen, part: Payload, trust: float, medians: NDArray[np.float64]) -> Payload:
        if not isinstance(part, Field) or one.field is None:
            return scaled_part(part, trust)
        sizes, entries = one.field
        if entries > self.field * max(medians[Column.ENTRIES], 1.0):
            return scaled_part(part, 0.0, 0.0)
        over = [size / max(self.field * most, TINY) for size, most in zip(sizes, medians[FIELD].tolist(), strict=True)]
        return scaled_part(part, trust / max(1.0, *over[:2]), 1 / max(1.0, *over[2:]))

    def _remember(self, one: _Seen, trust: float, model: Vector, standing: Standing) -> None:
        kept = standing.sketches[one.row]
        kept[Kept.MEMORY] = one.memory + np.float32(trust * one.update.remembered) * one.sent
        numbers = standing.numbers[one.row]
        rate = np.float32(FORGETTING if numbers[Column.KNOWN] else 1.0)
        kept[Kept.MODELS] += rate * (model - kept[Kept.MODELS])
        kept[Kept.UPDATES] += rate * (one.direction - kept[Kept.UPDATES])
        numbers[Column.KNOWN] = 1.0
        numbers[Column.TRUST] += FORGETTING * (trust - numbers[Column.TRUST])


def _favourable(row: NDArray[np.float64]) -> float:
    """The mean of a client's secants less its standard error: who is only unlucky is not in doubt."""
    mean, tests = row[Column.SECANT], row[Column.TESTS]
    rate = max(FORGETTING, 1 / tests)
    return float(mean - sqrt(max(row[Column.SPREAD] - mean**2, 0.0) * rate / (2 - rate)))


def _length(vector: Vector) -> float:
    return sqrt(float(vector @ vector))


def _sizes(field: Field) -> list[float]:
    """Σu, max u, ‖d‖ and max |d|."""
    u, d = field.fisher, np.abs(field.displacement)
    total = float(u.sum(dtype=np.float64))
    if field.factored_fisher is not None:
        rows, _ = field.factored_fisher.values
        total = max(total, float(rows.sum(dtype=np.float64)))
    return [total, float(u.max(initial=0.0)), float(np.linalg.norm(d)), float(d.max(initial=0.0))]


def _reaching(one: _Seen, bound: float) -> float:
    """The largest part b ≤ 1 of what was sent with which ‖memory + b·sent‖ ≤ bound; 0 where there is none."""
    a, b = float(one.sent @ one.sent), float(one.memory @ one.sent)
    c = float(one.memory @ one.memory) - bound**2
    inside = b * b - a * c
    if a <= 0 or inside < 0:
        return min(max(-b / a, 0.0), 1.0) if a > 0 else 1.0
    return min(max((-b + sqrt(inside)) / a, 0.0), 1.0)
