"""What the live page shows: the rounds of every watched run, in short, and how each run stands.

One `Feed` reads the run directories for all viewers. A viewer has a `Cursor` that knows what it has been sent.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from efl.config import Experiment
from efl.errors import UserError
from efl.runs.directory import Record, RunDirectory
from efl.runs.following import Following
from efl.runs.listing import DAMAGED, RUNNING, find_runs, last_change, merit_of, settings_that_differ, state_of
from efl.track.text import change_lines, outcome

LOOK_FOR_RUNS = 2.0  # seconds between two searches for new run directories; also how often their state is checked
RECENT = 20  # rounds from which the time left is estimated
AT_ONCE = 500  # rounds in an event
GONE = "deleted"
NOT_USED, REJECTED = 200, 400  # added to the percentage of steps done
Event = tuple[str, dict[str, Any]]
# Sections that do not change what is learnt; keys of algorithms that only some of the runs have are not shown either.
NOT_SHOWN = ("plugins", "engine", "track", "network")


class WatchedRun:
    """A run: what it is, its rounds so far, and how it stands."""

    def __init__(self, number: int, directory: RunDirectory, name: str) -> None:
        self.number, self.directory, self.name = number, directory, name
        self.experiment = directory.experiment()
        self.following = Following(directory)
        self.generation = 0  # how often the rounds so far were replaced by others
        self.merit = merit_of(())
        self.rounds: list[dict[str, Any]] = []
        self.status: dict[str, Any] = {}

    def read(self) -> bool:
        """Read what is new; whether anything is."""
        anew, records = self.following.read()
        if anew:
            self.generation += 1
            self.rounds = []
        merit = merit_of(records)
        if any("metric" in record for record in records) and merit != self.merit:
            self.merit = merit
            self.generation += 1  # the page learns of another figure of merit with all rounds
        self.rounds += [shortened(record, self.experiment, self.merit["metric"]) for record in records]
        return anew or bool(records)

    def renew_status(self) -> bool:
        """See what the run does; whether that is new."""
        before = self.status
        try:
            if not self.directory.config.exists():
                self.status = {"state": GONE}
            else:
                summary = self.directory.read_summary()
                self.status = {"state": state_of(self.directory, summary), "changed": last_change(self.directory)}
                if summary is not None:
                    self.status["ended"] = outcome(summary)
        except UserError as error:
            self.fail(error)
        if self.status["state"] == RUNNING:
            self.status["left"] = seconds_left(self.rounds, self.experiment.training.rounds)
        return self.status != before

    def fail(self, error: UserError) -> None:
        """Something in the directory cannot be read."""
        self.status = {"state": GONE if not self.directory.path.exists() else DAMAGED, "ended": str(error)}

    def described(self) -> dict[str, Any]:
        """What the run is, for the page."""
        experiment = self.experiment
        return {
            "run": self.number,
            "name": self.name,
            "path": str(self.directory.path),
            "algorithm": experiment.algorithm_name,
            "dataset": experiment.federation.dataset,
            "seed": experiment.training.seed,
            "rounds": experiment.training.rounds,
            "clients": experiment.federation.clients,
            "target": experiment.training.aim,
            **self.merit,
        }


@dataclass
class Cursor:
    """What a viewer has been sent: of every run, which generation, how many rounds and which status."""

    runs: int = 0
    sent: dict[int, tuple[int, int, str]] = field(default_factory=dict)


class Feed:
    """All runs at or below some paths.

    Args:
        paths: Run directories and folders of them.
        waiting: They may not be there yet, as where the run is about to start.

    Raises:
        UserError: If there is no run.
    """

    def __init__(self, paths: Sequence[Path], *, waiting: bool = False) -> None:
        self.paths = list(paths)
        self.runs: dict[Path, WatchedRun] = {}
        self.changed = threading.Condition()
        self.closed = False
        self._looked = -math.inf
        for path in paths:
            if not waiting and next(find_runs(path), None) is None:
                what = "there is no run in it" if path.is_dir() else "no such directory"
                raise UserError(f"{path}: {what}; give a run directory, or a folder of them")

    def poll(self, *, thoroughly: bool = False) -> None:
        """Read what is new, and wake those who wait for it.

        Args:
            thoroughly: Look now for new runs and at what runs do, which is otherwise done every other second.

        Raises:
            UserError: If all that was watched is gone.
        """
        with self.changed:
            gone = bool(self.runs) and not any(run.directory.path.exists() for run in self.runs.values())
            news = False
            if gone or thoroughly or time.monotonic() - self._looked >= LOOK_FOR_RUNS:
                self._looked = time.monotonic()
                news = self._look_for_runs()
                for run in self.runs.values():
                    news |= run.renew_status()
            for run in self.runs.values():
                news |= self._read(run)
            if news:
                self.changed.notify_all()
        if gone:
            raise UserError(f"{', '.join(map(str, self.paths))}: deleted while being watched")

    def close(self) -> None:
        """Tell viewers that nothing more comes."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def news(self, cursor: Cursor, patience: float = 0.0) -> list[Event]:
        """What a viewer has not been sent yet, waiting so many seconds for it; the cursor is moved on."""
        with self.changed:
            events = self._news(cursor)
            if not events and not self.closed:
                self.changed.wait(patience)
                events = self._news(cursor)
            return [*events, ("end", {})] if self.closed else events

    def _news(self, cursor: Cursor) -> list[Event]:
        events: list[Event] = []
        if cursor.runs != len(self.runs):
            cursor.runs, cursor.sent = len(self.runs), {}
            events.append(("runs", {"runs": described(list(self.runs.values()))}))
        for run in self.runs.values():
            events += _news_of(run, cursor)
        return events

    def _look_for_runs(self) -> bool:
        before = len(self.runs)
        for path in self.paths:
            for directory in find_runs(path):
                where = directory.path.resolve()
                if where not in self.runs:
                    with suppress(UserError):  # its settings are being written, or no run's
                        self.runs[where] = WatchedRun(len(self.runs), directory, _name(directory.path, path))
        return len(self.runs) > before

    def _read(self, run: WatchedRun) -> bool:
        if run.status.get("state") in (GONE, DAMAGED):
            return False
        try:
            if not run.read():
                return False
        except (UserError, OSError) as error:
            run.fail(error if isinstance(error, UserError) else UserError(str(error)))
            return True
        if "left" in run.status:
            run.status = run.status | {"left": seconds_left(run.rounds, run.experiment.training.rounds)}
        return True


def described(runs: Sequence[WatchedRun]) -> list[dict[str, Any]]:
    """What the runs are; with several, in which settings they differ, and which differ in nothing but the seed."""
    experiments = [run.experiment for run in runs]
    differing = settings_that_differ(experiments)
    shown = {
        key: values
        for key, values in differing.items()
        if key.split(".")[0] not in NOT_SHOWN
        and key not in ("algorithm.name", "algorithm.preset", "training.seed", "federation.dataset")
        and all(value is not None for value in values)
    }
    groups: dict[str, int] = {}
    found = []
    for i, run in enumerate(runs):
        group = groups.setdefault(_without_seed(run.experiment), len(groups))
        differs = {key: str(values[i]) for key, values in shown.items()}
        found.append({**run.described(), "group": group, "differs": differs})
    return found


def shortened(record: Record, experiment: Experiment, metric: str) -> dict[str, Any]:
    """A round as the page gets it; figures that it does not have are left out.

    ``who`` has pairs of a client and a code: how many percent of its steps it did (0: no reply), plus 200 if its work
    was not used, plus 400 if its reply was rejected.
    """
    steps, used = experiment.training.local_steps, set(record["aggregated"])
    rejected = record.get("rejected") or {}
    who: list[int] = []
    for client, done in record["clients"].items():
        share = min(100, max(1, round(100 * done / steps))) if done > 0 else 0
        away = REJECTED if client in rejected else NOT_USED if share and int(client) not in used else 0
        who += [int(client), share + away]
    short = {
        "round": record["round"] + 1,
        "seconds": record["seconds"],
        "up": record["bytes_up"],
        "down": record["bytes_down"],
        "bytes": record.get("bytes"),
        "simulated": record.get("simulated_seconds"),
        "merit": record.get(metric),
        "personalised": record.get(f"personalised_{metric}"),
        "loss": record["train_loss"],
        "who": who,
        "clients": record.get("by_client"),
        "rejected": [[client, str(why)] for client, why in rejected.items()],
        "changes": change_lines(record),
    }
    return {key: value for key, value in short.items() if value not in (None, []) and _is_number_or_more(value)}


def seconds_left(rounds: Sequence[dict[str, Any]], total: int) -> float | None:
    """How long a run will take at the pace of its last rounds; None before there are two."""
    recent = rounds[-RECENT - 1 :]
    if len(recent) < 2:
        return None
    pace = float(recent[-1]["seconds"] - recent[0]["seconds"]) / (len(recent) - 1)
    return round(max(0.0, pace * (total - len(rounds))), 1)


def _news_of(run: WatchedRun, cursor: Cursor) -> Iterable[Event]:
    """What a viewer has not been sent of a run."""
    generation, count, status = cursor.sent.get(run.number, (-1, 0, ""))
    if generation != run.generation:
        count, status = 0, ""
        yield "reset", {"run": run.number, **run.merit}
    for start in range(count, len(run.rounds), AT_ONCE):
        yield "rounds", {"run": run.number, "rounds": run.rounds[start : start + AT_ONCE]}
    if (now := json.dumps(run.status)) != status:
        yield "status", {"run": run.number, **run.status}
    cursor.sent[run.number] = run.generation, len(run.rounds), now


def _is_number_or_more(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _without_seed(experiment: Experiment) -> str:
    flat = {key: value for key, value in experiment.flat().items() if key.split(".")[0] not in NOT_SHOWN}
    return json.dumps({**flat, "training.seed": None}, default=str, sort_keys=True)


def _name(path: Path, watched: Path) -> str:
    """What a run is called: its folder, seen from what is watched."""
    relative = path.relative_to(watched)
    return str(relative) if relative.parts else path.resolve().name
