"""What an algorithm is handed and returns: the server's state, clients' updates, and the parts these are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf
from typing import Literal

from torch import Tensor

from efl.training.local_work import Parts
from efl.training.round_settings import RoundSettings
from efl.wire import Payload

__all__ = ["Budget", "Part", "Parts", "RoundSettings", "ServerState", "Update"]

Limit = Literal["update", "gradient", "vote"]
UPDATE = "update"  # the part of an upload that carries the encoded delta


@dataclass(frozen=True)
class Part:
    """A part of an upload, as the algorithm declares it.

    Attributes:
        payload: Its type; a reply with another is rejected.
        kind: What its bytes are counted as.
        limit: How long it may be where clients are not trusted: an ``update`` like the model, a ``gradient`` such that
            a round of steps along it is, no more than a ``vote`` per parameter.
        resend: Whether a client keeps it until it knows that it arrived, so that what was lost can be sent again.
        every: It is sent in every so many-th round only.
        fits: Whether a payload is one of this round; None if all are. A reply with another is rejected.
    """

    payload: type[Payload]
    kind: str = "state"
    limit: Limit = "gradient"
    resend: bool = False
    every: int = 1
    fits: Callable[[Payload, RoundSettings], bool] | None = None

    def comes_in(self, round_: int) -> bool:
        """Whether an upload of this round has it.

        >>> [round_ for round_ in range(9) if Part(Payload, every=3).comes_in(round_)]
        [2, 5, 8]
        """
        return round_ % self.every == self.every - 1


@dataclass(frozen=True)
class Budget:
    """How many bytes may travel, both ways together.

    Attributes:
        share: Of what FedAvg would send in the same rounds.
        per_client: Bytes per sampled client and round, if there is no share.
        even: Whether all rounds get alike, instead of later ones more.

    >>> Budget.named("1/25").allowed(1000, requests=10, complete=5), Budget.named(300).allowed(1000, 10, 5)
    (600.0, 3000.0)
    """

    share: float | None = None
    per_client: float = 0.0
    even: bool = False

    @classmethod
    def named(cls, budget: str | float, *, even: bool = False) -> Budget:
        """A share such as ``1/25`` or 0.04, or above 1 a number of bytes; `ValueError` if it is neither."""
        number = float(Fraction(budget))
        if not 0 < number < inf:
            raise ValueError("a budget is more than 0")
        return cls(number, even=even) if number <= 1 else cls(per_client=number, even=even)

    def allowed(self, model_bytes: int, requests: int, complete: int) -> float:
        """Bytes of a round with so many clients sampled, of which some did all their steps."""
        return self.per_client * requests if self.share is None else self.share * model_bytes * (requests + complete)


@dataclass(frozen=True)
class ServerState:
    """The model every client can be brought to, and whatever else is kept between rounds, by name."""

    w: Tensor
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def having(self, **tensors: Tensor) -> ServerState:
        """The state with some tensors replaced or added."""
        return replace(self, tensors={**self.tensors, **tensors})


@dataclass(frozen=True, eq=False)
class Start:
    """What an update of an earlier round started from: that round's settings, and its model.

    ``pace`` is ηE of the round that uses it over ηE of its own.
    """

    settings: RoundSettings
    w: Tensor
    pace: float = 1.0


@dataclass(frozen=True)
class Update:
    """What one client sent, and how it came to be received.

    Its sample count n_k and share p^k of the objective, the probability of being sampled and the observed rate of
    replying (their product is π_k), and the steps s it did. A defence may have it count as something else than what
    was sent (``counts_as``); ``trust`` is how much of it that is, from 0 to 1. ``remembered`` is how much of what was
    sent both sides keep in a memory, which the next update is to be added to, and ``fidelity`` how much of its squared
    length was meant, the rest being the noise of rounding; defences go by both. ``staleness`` is τ, the rounds since
    it started; if these are not none, ``start`` is what it started from, and whole models in it are increments from
    there.
    """

    client: int
    samples: int
    share: float
    sampling_probability: float
    response_rate: float
    steps: int
    parts: Parts
    trust: float = 1.0
    counts_as: Payload | None = None
    remembered: float = 0.0
    fidelity: float = 1.0
    staleness: int = 0
    start: Start | None = None

    def settings(self, now: RoundSettings) -> RoundSettings:
        """The settings it was trained by: those of ``now``, the round that uses it, unless it is late."""
        return now if self.start is None else self.start.settings

    def probability(self, answer_rates: bool = True) -> float:
        """π_k, or without how often the client replies."""
        return self.sampling_probability * (self.response_rate if answer_rates else 1.0)

    @property
    def delta(self) -> Payload:
        """The delta, or the model in its stead, as far as it counts."""
        return self.sent if self.counts_as is None else self.counts_as

    @property
    def sent(self) -> Payload:
        """The same as it was sent."""
        return self.parts[UPDATE]
