"""What the coordinator needs of a transport. Every kind of request goes through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from efl.client.evaluation import EvaluateRequests, Metrics
from efl.fleet.clock import Until

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class TrainRequests:
    """The requests of a round: an encoded `TrainRequest` for each client.

    ``deadline`` is how many seconds clients have; None for as many as they need.
    """

    round: int
    blobs: Mapping[int, bytes]
    deadline: float | None = None


Requests = TrainRequests | EvaluateRequests


@dataclass(frozen=True)
class Replies:
    """What came of requests: of those that were sent last, and of earlier ones whose clients were still at work.

    Attributes:
        blobs: To training requests, the encoded replies that arrived.
        steps: How many local steps each client did that replied or is not waited for any longer, as far as the
            transport knows; all others are still at work.
        metrics: To an evaluation, what each client reports; NaN for those that could not be reached.
        lost_bytes: What clients sent but did not arrive in time.
        rejected: Clients whose message was not a reply, and why.
    """

    blobs: Mapping[int, bytes] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    lost_bytes: int = 0
    rejected: Mapping[int, str] = field(default_factory=dict)


class Transport(Protocol):
    """Carries requests to clients and brings back their replies."""

    @property
    def now(self) -> float | None:
        """Simulated seconds since the start of the run; None where time is real."""
        ...

    def available(self, members: Mask) -> Mask:
        """Which members can be reached now."""
        ...

    def send(self, requests: Requests) -> None:
        """Send requests, none of them to a client at work; those of an evaluation must have been collected."""
        ...

    def collect(self, until: Until) -> Replies:
        """Wait for replies until the round ends."""
        ...

    def start(self) -> None:
        """Start the processes that the transport needs, if any."""
        ...

    def close(self) -> None:
        """Stop them."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What clients on this side of the network keep, uploads in flight, and the simulated time."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...

    def checkpointed(self) -> None:
        """The state was saved in a checkpoint."""
        ...
