"""Which client is on which machine: the server's book of everybody who ever came, kept in a file.

A node says which client it has. A node that the operator registered by the name ``client-K`` is believed only if it
says K, and nobody else can be K: the first key by that name keeps the place until the operator gives it to another one
(`places`). Without such names, whoever says K first is K for as long as its node is there; then another node may
take its place, because a node without a registered key comes back as a stranger.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from efl.errors import WireError
from efl.fleet import NO_DEPARTURE, Calendar
from efl.server.places import keep_promise, promised_places
from efl.server.registry_file import MOST_SAMPLES, read_book
from efl.storage import write_atomically

NAME = "client-"


@dataclass(frozen=True)
class Node:
    """A machine that is online: its number, the key it proved to have, the name it was registered by."""

    id: int
    key: str
    name: str = ""

    @property
    def place(self) -> int | None:
        """The client that the operator says it has."""
        number = self.name.removeprefix(NAME)
        return int(number) if self.name.startswith(NAME) and number.isdecimal() else None


@dataclass(eq=False)
class Registry:
    """Sample counts, nodes, arrivals and departures by client; ``path`` is the book."""

    clients: int
    patience: int
    path: Path | None = None
    online: dict[str, Node] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    named: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sizes, self.away = np.zeros((2, self.clients), dtype=np.int64)
        arrives, departs = np.full((2, self.clients), NO_DEPARTURE, dtype=np.int64)
        self.calendar = Calendar(arrives, departs, "registered")
        self.opened = -1
        self.missed: set[int] = set()  # by the server, since it was started: who was there when it was stopped
        self.promised: dict[int, str] = {}  # places whose next key the operator chose, and which has not come yet
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def meet(self, nodes: Iterable[Node]) -> list[Node]:
        """These nodes are online; those whose client is not known yet."""
        self.online = {node.key: node for node in nodes}
        self.promised = {} if self.path is None else promised_places(self.path.parent, self.clients)
        known = {key for client, key in self.keys.items() if client not in self.promised}
        return [node for node in self.online.values() if node.key not in known]

    def node(self, client: int) -> Node | None:
        """Where a client can be reached; a place that is to have another key has none."""
        return None if client in self.promised else self.online.get(self.keys.get(client, ""))

    def lose(self, client: int) -> None:
        """The client's node cannot be reached, as far as is known until `meet`."""
        self.online.pop(self.keys.get(client, ""), None)

    def claim(self, node: Node, client: Any, samples: Any) -> None:
        """A node says that it has this client, with so many training samples; `WireError` if it cannot be."""
        if not _is_count(client) or not 0 <= client < self.clients:
            raise WireError(f"node {node.id} says it is client {client!r:.40}; there are 0 … {self.clients - 1}")
        if not _is_count(samples) or not 1 <= samples <= MOST_SAMPLES:
            raise WireError(f"node {node.id} says client {client} has {samples!r:.40} samples")
        if node.place is not None and node.place != client:
            raise WireError(f"node {node.id} says it is client {client}, but was registered as {node.name}")
        self._check_place(node, client)
        self.keys[client] = node.key
        self.sizes[client] = samples
        if node.place is not None or client in self.promised:
            self.named.add(client)
        self._write()
        if self.promised.pop(client, None) is not None and self.path is not None:
            keep_promise(self.path.parent, client)

    def _check_place(self, node: Node, client: int) -> None:
        """Raise `WireError` if the place is another node's."""
        holder, promised = self.keys.get(client), self.promised.get(client)
        if promised is not None:
            taken = promised != node.key
        elif client in self.named:
            taken = holder != node.key
        else:
            taken = holder not in (None, node.key) and holder in self.online and node.place is None
        if taken and node.place == client:
            raise WireError(
                f"node {node.id} was registered as {node.name}, but so was another key, which keeps the place; "
                f"to change that: efl deploy move-client {client} KEY.pub"
            )
        if taken:
            raise WireError(f"node {node.id} says it is client {client}, but that is another node")

    def open_round(self, round_: int) -> None:
        """Before a round: those who have come arrive, those who are away for too long depart.

        A round that is opened again, because the server was stopped in it, is no further round away, and who came in it
        arrives with the next one, as it would have.
        """
        again, self.opened = round_ == self.opened, round_
        for client in self.keys:
            here = self.node(client) is not None
            member = bool(self.calendar.members(round_)[client])
            if here and not member and not again:  # it arrives, or is back: then it counts as having been there
                self.calendar.arrives[client] = min(round_, self.calendar.arrives[client])
                self.calendar.departs[client] = NO_DEPARTURE
            self.away[client] = 0 if here else self.away[client] + (not again)
            if member and self.away[client] >= self.patience:
                self.calendar.departs[client] = round_
        self._write()

    def complete(self) -> bool:
        """Whether everybody who was there when the server was stopped is there again."""
        return self.missed <= set(self.here())

    def here(self) -> list[int]:
        """The clients that can be reached."""
        return sorted(client for client in self.keys if self.node(client) is not None)

    def _write(self) -> None:
        if self.path is None:
            return
        book = {
            str(client): {
                "key": self.keys[client],
                "named": client in self.named,
                "samples": int(self.sizes[client]),
                "arrives": int(self.calendar.arrives[client]),
                "departs": int(self.calendar.departs[client]),
                "away": int(self.away[client]),
            }
            for client in sorted(self.keys)
        }
        write_atomically(self.path, (json.dumps({"round": self.opened, "clients": book}, indent=1) + "\n").encode())

    def _read(self, path: Path) -> None:
        self.opened, entries = read_book(path, self.clients)
        for client, entry in entries.items():
            self.keys[client] = entry["key"]
            self.named |= {client} if entry["named"] else set()
            self.sizes[client], self.away[client] = entry["samples"], entry["away"]
            self.calendar.arrives[client], self.calendar.departs[client] = entry["arrives"], entry["departs"]
        members = self.calendar.members(self.opened)
        self.missed = {client for client in self.keys if members[client] and self.away[client] == 0}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
