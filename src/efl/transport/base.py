"""What the coordinator asks of a transport."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Exchange:
    """What came of a round's requests.

    ``replies`` are those that arrived; ``lost_bytes`` were sent by clients but did not arrive; ``steps`` says how many
    local steps each client asked did, as far as the transport knows; ``refused`` whose reply was none, and why.
    """

    replies: Mapping[int, bytes]
    steps: Mapping[int, int]
    lost_bytes: int = 0
    refused: Mapping[int, str] = field(default_factory=dict)


class Transport(Protocol):
    """Carries requests to clients and brings back the replies of whoever answers."""

    def exchange(self, round_: int, requests: Mapping[int, bytes]) -> Exchange:
        """Deliver the requests of a round, by client, and wait for the replies."""
        ...
