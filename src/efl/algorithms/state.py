"""What an algorithm is handed and returns: the server's state, clients' updates, and the parts these are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from efl.training.local_work import Parts, RoundSettings
from efl.wire import Payload

__all__ = ["Part", "Parts", "RoundSettings", "ServerState", "Update"]

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
    """

    payload: type[Payload]
    kind: str = "state"
    limit: Limit = "gradient"
    resend: bool = False


@dataclass(frozen=True)
class ServerState:
    """The model every client can be brought to, and whatever else is kept between rounds, by name."""

    w: Tensor
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def having(self, **tensors: Tensor) -> ServerState:
        """The state with some tensors replaced or added."""
        return replace(self, tensors={**self.tensors, **tensors})


@dataclass(frozen=True)
class Update:
    """What one client sent, and how it came to be received.

    Its sample count n_k and share p^k of the objective, the probability of being sampled and the observed rate of
    replying (their product is π_k), and the steps s it did.
    """

    client: int
    samples: int
    share: float
    sampling_probability: float
    response_rate: float
    steps: int
    parts: Parts

    @property
    def delta(self) -> Payload:
        """The encoded delta, or the model in its stead."""
        return self.parts[UPDATE]
