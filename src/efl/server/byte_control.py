"""Keeps what a run sends within its budget, by making messages coarser or finer.

An algorithm may name a budget: a share of what FedAvg would send in the same rounds, whole models to every client
sampled and back from every one that finishes its steps, or bytes per client and round. After every round the steps of
all lattices are scaled by one factor, a power of 2^¼; requests bring that of uploads along, which besides depends on
the cohort. Bytes fall with the step a little slower than in proportion.

What is sent in a round depends on the steps of as many rounds ago as clients stay away (catch-up), D on average. So the
factor follows slowly, in 1/(D + 4) parts: an integrator behind a delay of D/2 is stable, and damped, up to several
times that. What was sent too much is paid back over the next rounds. The factor is bounded: a coarser lattice makes
noisier updates, and without bounds that could run away. For the same reason headers and fields, which no lattice makes
shorter, take no more than a part of the budget: very small models go beyond it instead. A share of what FedAvg sends is
never less than `FREE` bytes per client and round: of models of a few hundred parameters everything is small, and all of
them matter, so that these start with as fine a lattice as that allows.

A budget is not spent evenly: the first round gets `EARLY` of the usual bytes, and each later one a little more, so that
the mean over the rounds that were planned is the budget. As training settles it forgets the noise of early rounds, and
keeps that of the last ones (docs/algorithm.md). Very small models spend evenly: theirs are fine in any case. So do, the
more the less often clients return, large fleets: what was missed is sent in the finest of the steps since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import log2
from typing import Any

from efl.algorithms.state import Budget

USUAL, SMALLEST = 10, 0.5  # effective cohorts
SLOWEST = 4  # rounds besides D, in the pace at which the factor follows
PAID_BACK = 2  # times as many rounds, over which a debt is paid back
BOUNDS = (-1.0, 1.5)  # octaves
TARGETS = (0.4, 1.2)  # of what a round is allowed, whatever the debt
CAUTIOUS = 0.93  # of the budget is aimed at
LEAST = 0.75  # of the budget is left to what can be made coarser
EARLY = 0.4  # of the usual bytes are for the first round; the last has as many more than usual
RETURNING = 5.0  # rounds; where clients return less often, the first and the last round differ less
FREE = 512
MESSAGES = 2.5  # per client and round: an upload, and a broadcast with what was missed before
FINEST, PLAIN, PER_OCTAVE = -4.0, 0.65, 0.9  # octaves; bits per parameter of a usual lattice, and of one twice as fine
KindsSent = Mapping[Any, Mapping[str, int]]
COARSENED = ("update", "catch-up")  # as the ledger has them


@dataclass
class ByteControl:
    """The factor, and what it is worked out from: octaves, and bytes sent and allowed so far.

    ``rounds`` is over how many a budget is spread unevenly, 0 to spend evenly; ``early`` is what the first one gets.
    """

    budget: Budget | None
    octaves: float = 0.0
    sent: float = 0.0
    allowed: float = 0.0
    finest: float = BOUNDS[0]
    rounds: int = 0
    early: float = EARLY

    @classmethod
    def of(cls, budget: Budget | None, parameters: int, rounds: int = 0, returning: float = RETURNING) -> ByteControl:
        """For a model of so many parameters, so many rounds, and clients that return every so many rounds.

        >>> [ByteControl.of(Budget(1 / 25), n).octaves for n in (6, 1000, 10_000)]
        [-4.0, -1.098, 0.0]
        """
        if budget is None:
            return cls(budget)
        start = 0.0
        if budget.share is not None:
            bits = 8 * FREE / (MESSAGES * parameters)
            start = round(max(FINEST, min(0.0, (PLAIN - bits) / PER_OCTAVE)), 3)
        early = 1 - (1 - EARLY) * min(1.0, RETURNING / returning)
        control = cls(
            budget, start, finest=min(BOUNDS[0], start), rounds=0 if budget.even or start < 0 else rounds, early=early
        )
        control._move(-log2(control.spending(0)))
        return control

    def spending(self, round_: int) -> float:
        """How much of the usual bytes a round gets.

        >>> control = ByteControl.of(Budget(1 / 25), 10_000, rounds=5)
        >>> [round(control.spending(round_), 3) for round_ in range(6)]
        [0.4, 0.7, 1.0, 1.3, 1.6, 1.0]
        """
        if self.rounds < 2 or round_ >= self.rounds:
            return 1.0
        return self.early + 2 * (1 - self.early) * round_ / (self.rounds - 1)

    def coarseness(self, cohort: float) -> tuple[int, int]:
        """The factor's logarithm in quarters of an octave, for uploads and for broadcasts.

        The noise of an upload's rounding grows with its step, and falls with the number of uploads that it is averaged
        over. So in an effective cohort smaller than `USUAL` their steps are shorter in proportion. What rounding leaves
        out of a broadcast stays in the server's residual, which algorithms with a budget have, and comes later, whoever
        was sampled.
        """
        up = round(4 * (self.octaves + min(0.0, log2(max(cohort, SMALLEST) / USUAL))))
        return up, up if self.budget is None else round(4 * self.octaves)

    def note(
        self, kinds: KindsSent, model_bytes: int, requests: int, complete: int, clients: int, round_: int = 0
    ) -> None:
        """After a round.

        Args:
            kinds: What was sent in each direction, as in `Ledger.round`.
            model_bytes: Of a whole model.
            requests: How many clients were sampled.
            complete: How many clients that came to an end did all their steps.
            clients: How many there are.
            round_: The round's number.
        """
        if self.budget is None:
            return
        now = self.spending(round_)
        later = log2(now / self.spending(round_ + 1))  # octaves by which the next round's share is smaller
        sent = sum(way.get(kind, 0) for way in kinds.values() for kind in COARSENED)
        if sent == 0:
            self._move(later)
            return
        fixed = sum(sum(way.values()) for way in kinds.values()) - sent
        allowed = CAUTIOUS * self.budget.allowed(model_bytes, requests, complete)
        allowed = now * max(allowed - fixed, LEAST * allowed, FREE * requests if self.budget.share is not None else 0)
        self.sent, self.allowed = self.sent + sent, self.allowed + allowed
        if allowed == 0:  # nothing but partial work of earlier rounds came; it is paid back from now on
            self._move(later)
            return
        pace = clients / max(requests, 1) + SLOWEST
        target = allowed - (self.sent - self.allowed) / (PAID_BACK * pace)
        target = max(TARGETS[0] * allowed, min(TARGETS[1] * allowed, target))
        self._move(later + log2(sent / target) / pace)

    def _move(self, octaves: float) -> None:
        self.octaves = max(self.finest, min(BOUNDS[1], self.octaves + octaves))

    def state_dict(self) -> dict[str, float]:
        """Everything that rounds change, and over how many the budget is spread."""
        return {name: value for name, value in asdict(self).items() if name not in ("budget", "finest", "early")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; what an earlier version wrote goes on evenly."""
        self.rounds = int(state.get("rounds", 0))
        for name in ("octaves", "sent", "allowed"):
            setattr(self, name, float(state.get(name, getattr(self, name))))
