"""A whole network on this machine: a SuperLink, SuperNodes and the run they serve, as processes of their own.

Everything is started with Flower's own commands, on ports that were free a moment ago, and in process groups, so that
everything is stopped again, whatever happens.
"""

from __future__ import annotations

import json
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

from efl.deploy.certificates import Certificates, make_certificates, make_node_key
from efl.errors import UserError
from efl.processes import end_with_parent
from efl.server.registry import NAME

CONNECTION = "demo"
HOST = "127.0.0.1"
SLOW_START = 120.0  # seconds a process may take until it listens
SHUTDOWN = 10.0  # seconds it may take to stop when asked to
OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "PYTHONUNBUFFERED": "1",
}


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@dataclass(eq=False)
class LocalNetwork:
    """A SuperLink and SuperNodes on loopback; ``directory`` has their keys, logs, database and the clients' state."""

    directory: Path
    secure: bool = True
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.certificates: Certificates | None = None
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.secure:
            self.certificates = make_certificates(self.directory / "keys")
        home = self.directory / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(self._connection())
        self.environment = {**os.environ, **OFFLINE, "FLWR_HOME": str(home)}
        self.environment["PATH"] = f"{_scripts()}{os.pathsep}{os.environ.get('PATH', '')}"

    def __enter__(self) -> LocalNetwork:
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
        place = ["--host", HOST, "--port", str(self.port), "--database", str(self.directory / "superlink.db")]
        self._start("superlink", "flower-superlink", *place, *security, "--disable-runtime-dependency-installation")
        self._wait_for("superlink", self.port)

    def register(self, client: int, name: str | None = None) -> None:
        """Make a node's key and register it by the client's name."""
        _, public = make_node_key(self.directory / "keys", name or f"{NAME}{client}")
        self._command("flwr", "supernode", "register", str(public), CONNECTION, "--name", f"{NAME}{client}")

    def start_node(self, client: int, *, name: str | None = None, secure: bool = True) -> None:
        """A SuperNode that says it has this client; ``name`` is that of its key, if not the client's."""
        label = name or f"{NAME}{client}"
        config = f"partition-id={client} state-dir='{self.directory / 'clients'}'"
        security = ["--insecure"]
        if self.certificates is not None and secure:
            security = ["--root-certificates", str(self.certificates.authority)]
            security += ["--auth-supernode-private-key", str(self.directory / "keys" / label)]
        place = ["--superlink", f"{HOST}:{self.port}", "--port", str(free_port()), "--node-config", config]
        self._start(label, "flower-supernode", *place, *security)

    def run_app(self, app: Path) -> Iterator[str]:
        """Run an app; the lines its server prints, until it ends."""
        process = self._start("flwr-run", "flwr", "run", str(app), CONNECTION, "--stream", piped=True)
        assert process.stdout is not None
        with (self.directory / "run.log").open("ab") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                text = re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace")).rstrip()
                if (said := text.find("efl: ")) >= 0:
                    yield text[said + len("efl: ") :]
        process.wait()

    def kill(self, name: str) -> None:
        """As a power cut would: the process and all that it started."""
        process = self.processes.pop(name)
        _signal(process, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Ask everything to stop, nodes first; what does not is killed."""
        running = list(reversed(self.processes.values()))
        self.processes.clear()
        for process in running:
            _signal(process, signal.SIGTERM)
        end = time.monotonic() + SHUTDOWN
        try:
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))
        finally:  # also if somebody is in a hurry
            for process in running:
                _signal(process, signal.SIGKILL)
                process.wait()

    def traffic(self) -> tuple[int, int]:
        """The bytes from and to nodes that Flower counted, in all runs."""
        listing = json.loads(self._command("flwr", "list", CONNECTION, "--format", "json"))
        counts = [run["network-traffic"] for run in listing["runs"]]
        return sum(count["inbound-bytes"] for count in counts), sum(count["outbound-bytes"] for count in counts)

    def _connection(self) -> str:
        lines = [f"[superlink.{CONNECTION}]", f'address = "{HOST}:{self.port}"']
        if self.certificates is None:
            return "\n".join([*lines, "insecure = true", ""])
        return "\n".join([*lines, f'root-certificates = "{self.certificates.authority}"', ""])

    def _start(self, name: str, command: str, *arguments: str, piped: bool = False) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(_scripts() / command), *arguments],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.processes[name] = process
        return process

    def _wait_for(self, name: str, port: int) -> None:
        end = time.monotonic() + SLOW_START
        while time.monotonic() < end:
            if self.processes[name].poll() is not None:
                break
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)) == 0:
                    return
            time.sleep(0.2)
        raise UserError(f"{name} did not start; its log: {self.directory / f'{name}.log'}")

    def _command(self, command: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(_scripts() / command), *arguments],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SLOW_START,
            check=False,
        )
        if done.returncode != 0:
            raise UserError(
                f"{command} {' '.join(arguments[:2])} failed: {(done.stderr or done.stdout).strip()[-300:]}"
            )
        return done.stdout


def _scripts() -> Path:
    """Where Flower's commands are: beside this Python."""
    here = Path(sys.executable).parent
    if not (here / "flower-superlink").exists():
        found = shutil.which("flower-superlink")
        if found is None:
            raise UserError("Flower is not installed; run: pip install 'elastic-fl[flower]'")
        return Path(found).parent
    return here


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the process and all it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
