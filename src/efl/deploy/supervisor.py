"""Keeps a run going: starts the SuperLink and the app's run, and starts again what dies, until the run is finished.

Flower restarts neither: a run whose ServerApp was killed is listed as running for another minute, and nothing happens;
one whose SuperLink was killed has failed. Here the run directory says how things are. The server's app holds its lock
for as long as it works, and writes summary.json at the end; started again it goes on from the last round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from flwr.common.config import flatten_dict

from efl.deploy.superlink import RUN, SUPERLINK, Server
from efl.errors import UserError
from efl.flower.config import experiment_of
from efl.runs.directory import RunDirectory
from efl.settings import read_toml

LOOK_AGAIN = 1.0  # seconds between two checks of the processes
LONGEST_PAUSE = 60.0  # seconds before something that keeps dying is started again; the first time it is one
SLOW_APP = 300.0  # seconds until an app is at work; started again too soon it makes a busy machine busier
MOST_DEATHS = 20  # in a row without a round in between: then somebody has to look
LAST_WORDS = 10.0  # seconds that a finished app has for what it still prints


class Supervisor:
    """Runs an app to its end.

    Args:
        server: Has the SuperLink.
        app: The app's folder.
        say: Gets the lines that the app's server prints, and one for each death.
        restarts: Whether what dies is started again; otherwise it is an error.
    """

    def __init__(self, server: Server, app: Path, say: Callable[[str], None], *, restarts: bool = True) -> None:
        self.server, self.app, self.say, self.restarts = server, app.absolute(), say, restarts
        self.run = RunDirectory(server.directory / directory_of(self.app))
        if self.run.summary.exists():
            raise UserError(f"{self.run.path} holds a run that is finished; set network.directory to a new one")
        self.deaths = 0  # since the last round
        self._rounds = -1  # bytes of metrics.jsonl, by which rounds are noticed
        self._stream: threading.Thread | None = None
        self._started = 0.0  # when the app was
        self._worked = False  # whether the app has been seen at work since

    def serve(self) -> Path:
        """Until the run is finished; its directory. Whoever calls stops the server's processes."""
        while not self.run.summary.exists():
            self._note_rounds()
            self.server.note_children()
            link = self.server.processes.get(SUPERLINK)
            if link is None or link.poll() is not None:
                if link is not None:
                    self._died("the SuperLink")
                self._start_superlink()
            elif not self._alive():
                if self._stream is not None:
                    self._died("the server's app")
                self._start_app()
            time.sleep(LOOK_AGAIN)
        if self._stream is not None:
            self._stream.join(LAST_WORDS)
        return self.run.path

    def _start_superlink(self) -> None:
        """With it goes what it had started: an app without a SuperLink takes a minute to notice."""
        self.server.kill(SUPERLINK)
        self.server.kill(RUN)
        self._stream = None
        try:
            self.server.start_superlink()
        except UserError:
            if not self.deaths:  # it never ran: no accident
                raise

    def _start_app(self) -> None:
        self.server.kill(RUN)
        self._started, self._worked = time.monotonic(), False
        self._stream = threading.Thread(target=self._follow, daemon=True)
        self._stream.start()

    def _follow(self) -> None:
        for line in self.server.run_app(self.app):
            self.say(line)

    def _alive(self) -> bool:
        """Whether the app is at work, or may still be on its way to be."""
        if self._stream is None:
            return False
        if self._at_work():
            self._worked = True
            return True
        starting = self._stream.is_alive() and not self._worked
        return self.run.summary.exists() or (starting and time.monotonic() - self._started < SLOW_APP)

    def _at_work(self) -> bool:
        if not self.run.config.exists():
            return False
        try:
            with self.run.in_use():
                return False
        except UserError:
            return True

    def _note_rounds(self) -> None:
        """What dies after a round has not been dying all the time."""
        length = self.run.metrics.stat().st_size if self.run.metrics.exists() else 0
        if length > self._rounds >= 0:
            self.deaths = 0
        self._rounds = length

    def _died(self, what: str) -> None:
        """Say so, and wait: the longer the more often it happened."""
        logs = self.server.directory
        if not self.restarts:
            raise UserError(f"{what} died; the logs are in {logs}, and with --supervise it would be started again")
        self.deaths += 1
        if self.deaths > MOST_DEATHS:
            raise UserError(f"{self.deaths} deaths without a round in between, at last {what}; the logs are in {logs}")
        pause = min(LONGEST_PAUSE, 2.0 ** (self.deaths - 1))
        self.say(f"{what} died and is started again in {pause:.0f} s; the logs are in {logs}")
        time.sleep(pause)


def directory_of(app: Path) -> str:
    """Where an app's configuration has the server keep the run; `UserError` if it is no valid app."""
    project = app / "pyproject.toml"
    if not project.is_file():
        raise UserError(f"{app} is no app: it has no pyproject.toml; make one with: efl deploy init {app}")
    try:
        config = read_toml(project)["tool"]["flwr"]["app"].get("config", {})
    except KeyError:
        raise UserError(f"{project} is of no Flower app: it has no [tool.flwr.app]") from None
    return experiment_of(flatten_dict(config)).network.directory
