"""Uploads in flight: what clients that were asked will have sent, and when; a round takes those that are in time.

Where every round waits for all of its clients, nothing is in flight between rounds. Where it ends with some replies
(`efl.server.round_end`), the others stay in flight, and later rounds take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from efl.fleet.clock import IDLE, Until


class Upload(NamedTuple):
    """What becomes of a request: a reply, or nothing but the end of waiting for it.

    Attributes:
        client: Who was asked; nobody is asked again before that.
        steps: The local steps it did.
        sent: The time of the request.
        takes: The seconds from then on.
        blob: The encoded reply; empty if there is none, or it does not arrive.
        lost_bytes: How long a reply was that does not arrive.
    """

    client: int
    steps: int
    sent: float = 0.0
    takes: float = 0.0
    blob: bytes = b""
    lost_bytes: int = 0

    def due(self, now: float) -> float:
        """In how many seconds it is here; exact for requests that were sent now.

        >>> Upload(7, 20, sent=100.0, takes=50.0).due(130.0)
        20.0
        """
        return max(0.0, (self.sent - now) + self.takes)


def taken(uploads: Iterable[Upload], now: float, until: Until) -> tuple[list[Upload], float]:
    """The uploads that a round gets, the first one first, and how many seconds it lasts.

    If replies end it, they are exactly as many as that takes; a deadline lets in what is there by then.
    """
    queue = sorted((upload.due(now), upload.client, upload) for upload in uploads)  # no two of one client
    if not queue:
        return [], IDLE if until.deadline is None else until.deadline
    arrived, ended, elapsed = 0, 0, 0.0
    for ended, (elapsed, _, upload) in enumerate(queue, 1):
        arrived += bool(upload.blob)
        if until.done(arrived, len(queue) - ended, elapsed):
            break
    if not until.done(arrived, pending=1, elapsed=0.0):
        ended = sum(due <= elapsed for due, _, _ in queue)
    return [upload for _, _, upload in queue[:ended]], elapsed


def state_of(uploads: Sequence[Upload]) -> dict[str, Any]:
    """The uploads as tensors; nothing if there are none."""
    if not uploads:
        return {}
    numbers = [[one.client, one.steps, len(one.blob), one.lost_bytes] for one in uploads]
    blob = np.frombuffer(b"".join(one.blob for one in uploads), dtype=np.uint8)
    return {
        "numbers": torch.tensor(numbers, dtype=torch.int64),
        "times": torch.tensor([[one.sent, one.takes] for one in uploads], dtype=torch.float64),
        "blobs": torch.from_numpy(blob.copy()),
    }


def uploads_of(state: Mapping[str, Any]) -> list[Upload]:
    """The uploads that `state_of` was given."""
    if not state:
        return []
    blob, numbers, times = state["blobs"].numpy().tobytes(), state["numbers"].tolist(), state["times"].tolist()
    ends = pairwise(accumulate((length for _, _, length, _ in numbers), initial=0))
    return [
        Upload(client, steps, sent, takes, blob[start:end], lost)
        for (client, steps, _, lost), (sent, takes), (start, end) in zip(numbers, times, ends, strict=True)
    ]
