"""A SuperLink and the runs it serves, as processes of their own.

Everything is started with Flower's own commands and in process groups, so that everything is stopped again, whatever
happens.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from efl.deploy.certificates import Certificates
from efl.errors import UserError
from efl.processes import end_with_parent

HOME = "flwr"  # Flower's folder, in that of the SuperLink
CONNECTION = "efl"  # the SuperLink's name in Flower's configuration
LOOPBACK = "127.0.0.1"
ANYWHERE = ("0.0.0.0", "::", "localhost")  # addresses to listen at that include loopback
SUPERLINK, RUN = "superlink", "flwr-run"  # names of processes
SLOW_START = 120.0  # seconds a process may take until it listens
SHUTDOWN = 10.0  # seconds it may take to stop when asked to
OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds until an app's process is started; otherwise up to one
    "PYTHONUNBUFFERED": "1",
}


@dataclass(eq=False)
class Server:
    """A SuperLink; ``directory`` has its log, its database and, below it, the runs.

    Attributes:
        directory: Where everything is kept.
        certificates: What it proves itself by; None encrypts nothing, and lets every node in.
        port: Where it listens.
        host: The address it listens at.
        address: The name by which commands on this machine reach it; one of those in the certificate.
        processes: What was started, by name.
    """

    directory: Path
    certificates: Certificates | None
    port: int
    host: str = LOOPBACK
    address: str = LOOPBACK
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if os.name != "posix":
            raise UserError("efl starts Flower's processes on Linux and macOS only; use Flower's own commands")
        self.groups: set[int] = set()  # of processes that the SuperLink started
        home = self.directory / HOME
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(self._connection())
        self.environment = flower_environment(home)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_superlink(self) -> None:
        """The server that everybody connects to; started again it takes its database up where it left it."""
        security = ["--insecure"]
        if self.certificates is not None:
            made = self.certificates
            security = ["--ssl-certfile", str(made.server), "--ssl-keyfile", str(made.server_key)]
            security += ["--ssl-ca-certfile", str(made.authority), "--enable-supernode-auth"]
        place = ["--host", self.host, "--port", str(self.port), "--database", str(self.directory / "superlink.db")]
        self._start(SUPERLINK, "flower-superlink", *place, *security, "--disable-runtime-dependency-installation")
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Until the SuperLink listens; `UserError` if it does not, or ended."""
        end = time.monotonic() + SLOW_START
        while time.monotonic() < end:
            process = self.processes.get(SUPERLINK)
            if process is not None and process.poll() is not None:
                break
            with socket.socket() as probe:
                if probe.connect_ex((LOOPBACK if self.host in ANYWHERE else self.host, self.port)) == 0:
                    return
            time.sleep(0.2)
        raise UserError(f"{SUPERLINK} did not start; its log: {self.directory / f'{SUPERLINK}.log'}")

    def run_app(self, app: Path) -> Iterator[str]:
        """Run an app; the lines its server prints, until it ends."""
        process = self._start(RUN, "flwr", "run", str(app), CONNECTION, "--stream", piped=True)
        assert process.stdout is not None
        with (self.directory / "run.log").open("ab") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                text = re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace")).rstrip()
                if (said := text.find("efl: ")) >= 0:
                    yield text[said + len("efl: ") :]
        process.wait()

    def note_children(self) -> None:
        """Remember what the SuperLink has started: the server's app is in a process group of its own."""
        link = self.processes.get(SUPERLINK)
        if link is not None:
            self.groups |= _children(link.pid)

    def kill(self, name: str) -> None:
        """As a power cut would: the process, if it was started, and all that it started."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        if name == SUPERLINK:
            self.groups |= _children(process.pid)
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        if name == SUPERLINK:
            for group in self.groups:
                _signal(group, signal.SIGKILL)
            self.groups.clear()

    def stop(self) -> None:
        """Ask everything to stop, nodes first; what does not is killed."""
        self.note_children()
        running = list(reversed(self.processes.values()))
        self.processes.clear()
        for process in running:
            _signal(process.pid, signal.SIGTERM)
        end = time.monotonic() + SHUTDOWN
        try:
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))
        finally:  # also if somebody is in a hurry
            for process in running:
                _signal(process.pid, signal.SIGKILL)
                process.wait()
            for group in self.groups:
                _signal(group, signal.SIGKILL)
            self.groups.clear()

    def _connection(self) -> str:
        lines = [f"[superlink.{CONNECTION}]", f'address = "{self.address}:{self.port}"']
        if self.certificates is None:
            return "\n".join([*lines, "insecure = true", ""])
        return "\n".join([*lines, f'root-certificates = "{self.certificates.authority}"', ""])

    def _start(
        self, name: str, command: str, *arguments: str, piped: bool = False, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(scripts() / command), *arguments],
                cwd=self.directory,
                env=environment or self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.processes[name] = process
        return process

    def command(self, *arguments: str) -> str:
        """What ``flwr ARGUMENTS`` prints."""
        return flwr(self.directory, *arguments)


def flwr(directory: Path, *arguments: str) -> str:
    """What ``flwr ARGUMENTS`` prints about the SuperLink whose state is in ``directory``; `UserError` if it fails."""
    try:
        done = subprocess.run(
            [str(scripts() / "flwr"), *arguments],
            cwd=directory,
            env=flower_environment(directory / HOME),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SLOW_START,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"flwr {' '.join(arguments[:2])} did not end in {SLOW_START:.0f} s") from None
    if done.returncode != 0:
        raise UserError(f"flwr {' '.join(arguments[:2])} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def flower_environment(home: Path) -> dict[str, str]:
    """For processes of Flower: they find its commands and their configuration in ``home``, and call nobody outside."""
    path = f"{scripts()}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **OFFLINE, "FLWR_HOME": str(home), "PATH": path}


def scripts() -> Path:
    """Where Flower's commands are: beside this Python."""
    here = Path(sys.executable).parent
    if not (here / "flower-superlink").exists():
        found = shutil.which("flower-superlink")
        if found is None:
            raise UserError("Flower is not installed; run: pip install 'elastic-fl[flower]'")
        return Path(found).parent
    return here


def _children(process: int) -> set[int]:
    """The children of a process that lead a process group, where Linux lists them."""
    listed: list[str] = []
    for tasks in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            listed += tasks.read_text().split()
    found: set[int] = set()
    for child in map(int, listed):
        with suppress(OSError):
            found |= {child} if os.getpgid(child) == child else set()
    return found


def _signal(group: int, number: signal.Signals) -> None:
    """To a process and all it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
