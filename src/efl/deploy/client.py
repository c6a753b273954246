"""`efl deploy client`: a SuperNode, as it has to be started to be a client."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from efl.client.state_file import state_directory
from efl.deploy.superlink import LOOPBACK, flower_environment
from efl.errors import UserError
from efl.server.registry import NAME

# Flower's node, whose death the SuperLink notices after 20 seconds instead of a minute.
NODE = """
from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli import flower_supernode
heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10
flower_supernode()
"""


@dataclass(frozen=True)
class ClientNode:
    """A SuperNode that has one client.

    Attributes:
        client: Its number.
        superlink: The server, ``HOST:PORT``.
        state: Where it keeps what must outlast it.
        certificate: What the server is recognised by; None encrypts nothing.
        key: The private key that it proves itself by; None for a node without one.
        data: Further entries of its node configuration, for the app.
    """

    client: int
    superlink: str
    state: Path
    certificate: Path | None = None
    key: Path | None = None
    data: str = ""

    @classmethod
    def with_keys(cls, client: int, superlink: str, keys: Path | None, state: Path | None, data: str) -> ClientNode:
        """One with the keys in a folder, by the names that `efl deploy keys` gives them; `UserError` without them."""
        address(superlink)
        where = state_directory(None) if state is None else state.absolute()
        if keys is None:
            return cls(client, superlink, where, data=data)
        certificate, key = keys.absolute() / "ca.pem", keys.absolute() / f"{NAME}{client}"
        if not certificate.is_file():
            raise UserError(f"{certificate}: no such file; copy it from the server")
        if not key.is_file():
            raise UserError(f"{key}: no such file; make it with: efl deploy keys {keys} --client {client}")
        return cls(client, superlink, where, certificate, key, data)

    @property
    def command(self) -> list[str]:
        """The command that starts it, on a port of its own: several may be on one machine."""
        if "'" in str(self.state):
            raise UserError(f"{self.state}: Flower takes no path with a quote in it")
        config = f"partition-id={self.client} state-dir='{self.state}' {self.data}".strip()
        place = ["--superlink", self.superlink, "--port", str(free_port()), "--node-config", config]
        security = ["--insecure"]
        if self.certificate is not None:
            security = ["--root-certificates", str(self.certificate)]
        if self.key is not None:
            security += ["--auth-supernode-private-key", str(self.key)]
        return [sys.executable, "-c", NODE, *place, *security]

    def run(self) -> None:
        """Become the node; whoever manages this process manages the node."""
        home = self.state / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        command = self.command
        os.execve(command[0], command, flower_environment(home))


def address(superlink: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; `UserError` if it is something else."""
    host, colon, port = superlink.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 2**16:
        raise UserError(f"{superlink} is no address; write HOST:PORT, such as fl.example.org:8000")
    return host, int(port)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
