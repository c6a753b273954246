"""`efl deploy status`: how a run on a network stands, from its directory alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from efl.fleet import NO_DEPARTURE
from efl.flower.activity import WAITING, Activity, read_activity
from efl.runs.directory import Record, RunDirectory
from efl.runs.listing import RUNNING, state_of
from efl.server.registry_file import read_book

NEVER = -1  # the round of a client's last update, if it had none


@dataclass(frozen=True)
class ClientStatus:
    """How one client stands.

    Attributes:
        client: Its number.
        known: Whether it ever came.
        online: Whether it is connected; None if nobody is there to tell.
        departed: Whether it was out of reach for so long that it counts as gone.
        now: What it does in the round under way: replied, rejected, working, late, offline, or nothing.
        seconds: For how long it has had the request.
        sampled: Rounds in which it was asked.
        updates: Rounds in which its update was used.
        last: The last of them, from 0.
        rejected: Why its last reply was rejected, if it was.
    """

    client: int
    known: bool = False
    online: bool | None = None
    departed: bool = False
    now: str = ""
    seconds: float = 0.0
    sampled: int = 0
    updates: int = 0
    last: int = NEVER
    rejected: str = ""

    @property
    def connection(self) -> str:
        """Whether it is there, in a word or two."""
        if not self.known:
            return "never came"
        if self.online is None:
            return "departed" if self.departed else "unknown"
        return "online" if self.online else "departed" if self.departed else "offline"


@dataclass(frozen=True)
class NetworkStatus:
    """How a run stands.

    Attributes:
        state: running, stopped, finished …, as `efl runs` has it.
        rounds: Rounds done, and how many there are to be.
        doing: What the server does: wait, train or evaluate.
        seconds: For how long.
        bytes_up: Bytes from clients.
        bytes_down: Bytes to clients.
        clients: All places, by number.
    """

    state: str
    rounds: tuple[int, int]
    doing: str
    seconds: float
    bytes_up: int
    bytes_down: int
    clients: list[ClientStatus]

    @property
    def late(self) -> list[int]:
        """Clients that have a request for longer than they may work on it."""
        return [one.client for one in self.clients if one.now == "late"]


def network_status(directory: Path, now: float | None = None) -> NetworkStatus:
    """How the run in a directory stands.

    Args:
        directory: The run directory.
        now: The time, in seconds since 1970; by default the present.

    Returns:
        What config.toml, metrics.jsonl, clients.json and activity.json have.

    Raises:
        UserError: It is no run directory, or one of these is damaged.
    """
    run, now = RunDirectory.open(directory), time.time() if now is None else now
    experiment, history = run.experiment(), run.history()
    state = state_of(run, run.read_summary())
    activity = (read_activity(directory) if state == RUNNING else None) or Activity()
    seconds = max(0.0, now - activity.since) if activity.since else 0.0
    network, clients = experiment.network, experiment.federation.clients
    book = directory / "clients.json"
    opened, entries = read_book(book, clients) if book.exists() else (-1, {})
    found: list[ClientStatus] = []
    for client in range(clients):
        entry, known = entries.get(client, {}), client in entries
        left = int(entry.get("departs", NO_DEPARTURE)) <= max(opened, 0)
        online = client in activity.online if activity.since else None
        doing = _now(client, activity, late=seconds > max(1.0, network.deadline - network.margin))
        past = _past(client, history)
        found.append(ClientStatus(client, known, online, known and left, doing, seconds if doing else 0.0, *past))
    up, down = (sum(int(record[f"bytes_{way}"]) for record in history) for way in ("up", "down"))
    rounds = len(history), experiment.training.rounds
    return NetworkStatus(state, rounds, activity.doing if activity.since else "", seconds, up, down, found)


def _now(client: int, activity: Activity, *, late: bool) -> str:
    """What a client does in the round under way."""
    if activity.doing == WAITING or client not in activity.asked:
        return ""
    if client in activity.replied:
        return "replied"
    if client in (activity.rejected or {}):
        return "rejected"
    return "offline" if client not in activity.online else "late" if late else "working"


def _past(client: int, history: list[Record]) -> tuple[int, int, int, str]:
    """How often a client was asked, how often its update was used, when last, and why not since."""
    asked = [record for record in history if str(client) in record["clients"]]
    used = [int(record["round"]) for record in asked if client in record["aggregated"]]
    rejected = str(asked[-1].get("rejected", {}).get(str(client), "")) if asked else ""
    return len(asked), len(used), used[-1] if used else NEVER, rejected
