"""Runs with worker processes that are killed (SIGKILL) at random moments and resumed, until they end.

Each must end with the model, and the records of all rounds, that a run has which nobody killed. A third of the kills
come at any time, a third while a file is being written, a third hit a worker process, which the run replaces. To have
many of them in little time, runs are forked from this process, which has imported everything and computed nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from efl.api import resume, run
from efl.config import Experiment, parse
from efl.processes import needs_linux
from efl.runs.directory import RunDirectory
from efl.storage import PART

PATIENCE = 120.0  # seconds after which a run hangs
WAITING = 0.0005  # seconds, while a moment has not come
SHOWN = 20  # kills between two lines
MOMENTS = ("at any time", "while a file was written", "of a worker")


@dataclass
class Killed:
    """What became of the runs."""

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every run ended as one that nobody killed."""
        return not self.failures and self.runs > 0

    def __str__(self) -> str:
        kinds = ", ".join(f"{self.kills[moment]} {moment}" for moment in MOMENTS)
        verdict = "every one ended with the same model and records" if self.passed else f"{len(self.failures)} did not"
        first = f"; the first: {self.failures[0]}" if self.failures else ""
        return f"{self.kills.total()} kills ({kinds}), {self.runs} runs in {self.seconds:.0f} s: {verdict}{first}"


def experiment() -> Experiment:
    """A small run that has everything which a resumed one must find again."""
    return parse(
        {
            "training": {"rounds": 12, "cohort": 5, "local_steps": 3, "evaluate_every": 4},
            "fleet": {"stragglers": 0.5, "inactive": 0.1, "lost": 0.1, "arrivals": [[4, 5]]},
            "track": {"checkpoint_every": 2},
            "engine": {"workers": 2},
        }
    )


def kill_runs(kills: int, seed: int = 0, say: Callable[[str], None] = print) -> Killed:
    """Kill so many processes; what became of their runs."""
    needs_linux("efl bench kills")
    rng, outcome, began = random.Random(seed), Killed(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="efl-kills-") as folder:
        whole = Path(folder, "whole")
        started = time.perf_counter()
        if (code := _Child(whole).wait(PATIENCE)) != 0:
            raise RuntimeError(f"a run that nobody killed ended with {code}: {_said(whole)}")
        length, expected = time.perf_counter() - started, _result(whole)
        while outcome.kills.total() < kills:
            path = Path(folder, f"run-{outcome.runs}")
            why = _run_killed(path, length, kills, rng, outcome, say)
            outcome.runs += 1
            if why is None and _result(path) != expected:
                why = "ended with another model, or other records"
            if why is not None:
                outcome.failures.append(f"run {outcome.runs}: {why}")
    outcome.seconds = time.perf_counter() - began
    return outcome


def _run_killed(
    path: Path, length: float, kills: int, rng: random.Random, outcome: Killed, say: Callable[[str], None]
) -> str | None:
    """Start a run, kill and resume it until it ends; why it did not, if so."""
    while True:
        child, moment = _Child(path), rng.choice(MOMENTS)
        wanted = outcome.kills.total() < kills
        if wanted and _killed(child, path, moment, length, rng):
            outcome.kills[moment] += 1
            if (count := outcome.kills.total()) % SHOWN == 0:
                say(f"{count} of {kills} kills, {outcome.runs} runs ended, {len(outcome.failures)} wrong")
        code = child.wait(PATIENCE)
        if code == 0:
            return None
        if code is None:
            return f"hung after a kill {moment}"
        if code != -signal.SIGKILL:
            return f"ended with {code} after a kill {moment}: {_said(path)}"


def _killed(child: _Child, path: Path, moment: str, length: float, rng: random.Random) -> bool:
    """Wait for the moment and kill; False if the run ended before."""
    time.sleep(rng.uniform(0, length))
    end = time.monotonic() + length
    if moment == "while a file was written":
        while not child.ended and time.monotonic() < end and not any(path.rglob(f"*{PART}")):
            time.sleep(WAITING)
        time.sleep(rng.uniform(0, 4 * WAITING))
    if child.ended:
        return False
    target = child.pid
    if moment == "of a worker":
        workers = _children(child.pid)
        if not workers:
            return False
        target = rng.choice(workers)
    with suppress(ProcessLookupError):
        os.kill(target, signal.SIGKILL)
    return True


class _Child:
    """A process that runs or resumes what is in a directory."""

    def __init__(self, path: Path) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_work(path))

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = None if pid == 0 else os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, patience: float) -> int | None:
        """Its exit code; None if it hung, and was killed for that."""
        end = time.monotonic() + patience
        while not self.ended:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return None
            time.sleep(10 * WAITING)
        return self.code


def _work(path: Path) -> int:
    """What a child does; its exit code."""
    try:
        if (path / "config.toml").exists():
            resume(path)
        else:
            run(experiment(), path)
    except BaseException as error:
        with suppress(OSError):
            path.with_suffix(".error").write_text(f"{type(error).__name__}: {error}")
        return 1
    return 0


def _said(path: Path) -> str:
    """What ended a child."""
    with suppress(OSError):
        return path.with_suffix(".error").read_text()
    return "it said nothing"


def _children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _result(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """The model's hash, and the records but for the time that rounds took."""
    directory = RunDirectory.open(path)
    records = [{key: value for key, value in record.items() if key != "seconds"} for record in directory.history()]
    return str(json.loads(directory.summary.read_text())["model_sha256"]), records
