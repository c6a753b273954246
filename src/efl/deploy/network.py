"""A whole network on this machine: a SuperLink, SuperNodes and the run they serve, on ports that were free just now."""

from __future__ import annotations

import json
import os
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from efl.deploy.certificates import make_certificates, make_node_key
from efl.deploy.client import ClientNode, free_port
from efl.deploy.superlink import CONNECTION, LOOPBACK, Server
from efl.server.registry import NAME


class LocalNetwork(Server):
    """A SuperLink and SuperNodes on loopback; ``directory`` has their keys, logs, database and the clients' state."""

    def __init__(self, directory: Path, secure: bool = True) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory, make_certificates(directory / "keys") if secure else None, free_port())
        self._nodes: dict[str, tuple[ClientNode, dict[str, str]]] = {}  # and their environments

    def register(self, *clients: int) -> None:
        """Make these clients' keys and register them by their names, as many at a time as there are processors."""

        def register(client: int) -> None:
            _, public = make_node_key(self.directory / "keys", f"{NAME}{client}")
            self.command("supernode", "register", str(public), CONNECTION, "--name", f"{NAME}{client}")

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(register, clients))

    def start_node(
        self, client: int, *, name: str | None = None, secure: bool = True, state: Path | None = None
    ) -> None:
        """A SuperNode that says it has this client; ``name`` is that of its key, if not the client's.

        ``state`` is where the client keeps its file, by default in this network's directory.
        """
        label = name or f"{NAME}{client}"
        certificate = self.certificates.authority if self.certificates is not None and secure else None
        key = self.directory / "keys" / label if certificate is not None else None
        kept = state or self.directory / "clients"
        self._nodes[label] = ClientNode(client, f"{LOOPBACK}:{self.port}", kept, certificate, key), {**self.environment}
        self._start_node(label)

    def _start_node(self, label: str) -> None:
        node, environment = self._nodes[label]
        self._start(label, *node.command, environment=environment)

    def revive(self, except_for: Container[str] = ()) -> list[str]:
        """Start the nodes again that have ended, as a service manager does; their names."""
        known = {label: self.processes[label] for label in self._nodes if label in self.processes}
        ended = [label for label, node in known.items() if node.poll() is not None and label not in except_for]
        for label in ended:
            self.kill(label)  # what it had started
            self._start_node(label)
        return ended

    def traffic(self) -> tuple[int, int]:
        """The bytes from and to nodes that Flower counted, in all runs."""
        listing = json.loads(self.command("list", CONNECTION, "--format", "json"))
        counts = [run["network-traffic"] for run in listing["runs"]]
        return sum(count["inbound-bytes"] for count in counts), sum(count["outbound-bytes"] for count in counts)
