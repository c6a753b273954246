"""What a server on a network is doing now: a file in the run directory, which `efl deploy status` reads.

Nothing depends on it: a file that is missing or damaged, or that cannot be written, stops no run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from efl.reading import DamagedError, parse_json, read_text, readable

NAME = "activity.json"
WAITING, TRAINING, EVALUATING = "wait", "train", "evaluate"  # the last two as Flower's messages are called
MOST_CLIENTS = 10**9
LONGEST_REASON = 300  # characters


@dataclass(frozen=True)
class Activity:
    """What a server does, and with whom.

    Attributes:
        doing: wait, train or evaluate.
        online: The clients that are connected.
        asked: Those that have a request, or would have one if they were connected.
        replied: Those of them whose reply has come.
        rejected: Those whose reply was rejected, and why.
        since: When the requests were sent, in seconds since 1970.
    """

    doing: str = WAITING
    online: tuple[int, ...] = ()
    asked: tuple[int, ...] = ()
    replied: tuple[int, ...] = ()
    rejected: Mapping[int, str] | None = None
    since: float = 0.0

    @property
    def awaited(self) -> list[int]:
        """Whose reply has not come."""
        return sorted(set(self.asked) - set(self.replied) - set(self.rejected or {}))


class ActivityFile:
    """Writes the file whenever something has changed.

    Args:
        directory: The run's.
        clock: Seconds since 1970.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self.clock, self._last = directory / NAME, clock, Activity()

    def __call__(self, doing: str, online: Collection[int], asked: Collection[int] = (), **answers: Any) -> None:
        """Note what is done now; ``answers`` are those of `Activity`."""
        now = Activity(doing, tuple(sorted(online)), tuple(sorted(asked)), **answers)
        same = self._last.since and (now.doing, now.asked) == (self._last.doing, self._last.asked)
        now = replace(now, since=self._last.since if same else self.clock())
        if now != self._last:
            self._last = now
            self._write(now)

    def _write(self, now: Activity) -> None:
        table = {**vars(now), "rejected": {str(c): why[:LONGEST_REASON] for c, why in (now.rejected or {}).items()}}
        # Not `write_atomically`: this is written several times a round, and need not survive a power cut.
        temporary = self.path.with_name(f"{NAME}.{os.getpid()}.part")
        with suppress(OSError):
            temporary.write_text(json.dumps(table) + "\n")
            os.replace(temporary, self.path)


def read_activity(directory: Path) -> Activity | None:
    """What a run's server did last; None if it never said. `UserError` if the file is damaged."""
    path = directory / NAME
    if not os.path.lexists(path):
        return None
    with readable(path, "delete it; the server writes it anew"):
        table = parse_json(read_text(path), finite=True)
        if not isinstance(table, dict) or table.get("doing") not in (WAITING, TRAINING, EVALUATING):
            raise DamagedError("not what a server does")
        lists = {name: _clients(table.get(name)) for name in ("online", "asked", "replied")}
        rejected = table.get("rejected")
        if not isinstance(rejected, dict) or not all(isinstance(why, str) for why in rejected.values()):
            raise DamagedError("rejected is not a table of reasons")
        return Activity(table["doing"], rejected=_by_number(rejected), since=float(table["since"]), **lists)


def _clients(found: Any) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(one) is int and 0 <= one <= MOST_CLIENTS for one in found):
        raise DamagedError("not a list of clients")
    return tuple(found)


def _by_number(table: Mapping[str, str]) -> dict[int, str]:
    if not all(name.isascii() and name.isdecimal() and len(name) < 10 for name in table):
        raise DamagedError("rejected is not by client")
    return {int(name): why for name, why in table.items()}
