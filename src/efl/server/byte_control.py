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
FREE = 512
MESSAGES = 2.5  # per client and round: an upload, and a broadcast with what was missed before
FINEST, PLAIN, PER_OCTAVE = -4.0, 0.65, 0.9  # octaves; bits per parameter of a usual lattice, and of one twice as fine
KindsSent = Mapping[Any, Mapping[str, int]]
COARSENED = ("update", "catch-up")  # as the ledger has them


@dataclass
class ByteControl:
    """The factor, and what it is worked out from: octaves, and bytes sent and allowed so far."""

    budget: Budget | None
    octaves: float = 0.0
    sent: float = 0.0
    allowed: float = 0.0
    finest: float = BOUNDS[0]

    @classmethod
    def of(cls, budget: Budget | None, parameters: int) -> ByteControl:
        """For a model of so many parameters.

        >>> [ByteControl.of(Budget(1 / 25), n).octaves for n in (6, 1000, 10_000)]
        [-4.0, -1.098, 0.0]
        """
        if budget is None or budget.share is None:
            return cls(budget)
        bits = 8 * FREE / (MESSAGES * parameters)
        start = round(max(FINEST, min(0.0, (PLAIN - bits) / PER_OCTAVE)), 3)
        return cls(budget, start, finest=min(BOUNDS[0], start))

    def coarseness(self, cohort: float) -> tuple[int, int]:
        """The factor's logarithm in quarters of an octave, for uploads and for broadcasts.

        The noise of an upload's rounding grows with its step, and falls with the number of uploads that it is averaged
        over. So in an effective cohort smaller than `USUAL` their steps are shorter in proportion. What rounding leaves
        out of a broadcast stays in the server's residual, which algorithms with a budget have, and comes later, whoever
        was sampled.
        """
        up = round(4 * (self.octaves + min(0.0, log2(max(cohort, SMALLEST) / USUAL))))
        return up, up if self.budget is None else round(4 * self.octaves)

    def note(self, kinds: KindsSent, model_bytes: int, requests: int, complete: int, clients: int) -> None:
        """After a round.

        Args:
            kinds: What was sent in each direction, as in `Ledger.round`.
            model_bytes: Of a whole model.
            requests: How many clients were sampled.
            complete: How many clients that came to an end did all their steps.
            clients: How many there are.
        """
        if self.budget is None:
            return
        sent = sum(way.get(kind, 0) for way in kinds.values() for kind in COARSENED)
        if sent == 0:
            return
        fixed = sum(sum(way.values()) for way in kinds.values()) - sent
        allowed = CAUTIOUS * self.budget.allowed(model_bytes, requests, complete)
        allowed = max(allowed - fixed, LEAST * allowed, FREE * requests if self.budget.share is not None else 0)
        self.sent, self.allowed = self.sent + sent, self.allowed + allowed
        if allowed == 0:  # nothing but partial work of earlier rounds came; it is paid back from now on
            return
        pace = clients / max(requests, 1) + SLOWEST
        target = allowed - (self.sent - self.allowed) / (PAID_BACK * pace)
        target = max(TARGETS[0] * allowed, min(TARGETS[1] * allowed, target))
        self.octaves = max(self.finest, min(BOUNDS[1], self.octaves + log2(sent / target) / pace))

    def state_dict(self) -> dict[str, float]:
        """Everything that rounds change."""
        return {name: value for name, value in asdict(self).items() if name not in ("budget", "finest")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, value in state.items():
            setattr(self, name, float(value))
