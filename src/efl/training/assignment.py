"""What one client is to do in a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from efl.wire import Payload

NO_ROUND = -1
PERSONAL = "personal layers"  # the name of what stays with a client among the vectors it keeps


@dataclass(frozen=True, eq=False)
class Assignment:
    """What one client is to do: the steps it is able to do, and how things stand between it and the server.

    ``last_upload`` is the round of its last upload, ``undelivered`` what of that the server never received (None if it
    did), ``personal`` what the server sent to this client alone.
    """

    client: int
    steps: int
    last_upload: int = NO_ROUND
    undelivered: Mapping[str, Payload] | None = None
    personal: Payload | None = None
