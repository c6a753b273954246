"""When a round ends: on a simulated clock and on a network alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RoundEnd:
    """A round ends when no reply is pending, with ``buffer`` replies, or at the ``deadline`` (None: neither ends it).

    >>> RoundEnd(60.0).done(replies=3, pending=1, elapsed=61.0), RoundEnd().done(replies=3, pending=1, elapsed=61.0)
    (True, False)
    >>> RoundEnd(buffer=3).done(replies=3, pending=7, elapsed=1.0)
    True
    """

    deadline: float | None = None
    buffer: int | None = None

    def done(self, replies: int, pending: int, elapsed: float) -> bool:
        """Whether to stop waiting, with so many ``replies`` and ``pending`` ones after ``elapsed`` seconds."""
        enough = self.buffer is not None and replies >= self.buffer
        return not pending or enough or (self.deadline is not None and elapsed >= self.deadline)
