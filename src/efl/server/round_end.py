"""When a round ends: on a simulated clock and on a network alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RoundEnd:
    """A round ends when no reply is pending, or at the ``deadline`` (seconds; None to wait for all).

    >>> RoundEnd(60.0).done(replies=3, pending=1, elapsed=61.0), RoundEnd().done(replies=3, pending=1, elapsed=61.0)
    (True, False)
    """

    deadline: float | None = None

    def done(self, replies: int, pending: int, elapsed: float) -> bool:
        """Whether to stop waiting, with so many ``replies`` and ``pending`` ones after ``elapsed`` seconds."""
        return not pending or (self.deadline is not None and elapsed >= self.deadline)
