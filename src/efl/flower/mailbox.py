"""Clients behind Flower: requests and replies travel as messages of its grid, one record each.

A message holds one record, the `Envelope`: the bytes that the coordinator or the client made, and a few entries around
them. Replies count until the round ends. One that comes later is discarded, and its bytes are billed as lost. With the
next request its client learns of it and resends the update: it may be late, but is not lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import ConfigRecord, Message, RecordDict

from efl.errors import WireError
from efl.fleet.clock import Until
from efl.server.registry import Node, Registry

RECORD = "efl"
POLL = 0.5  # seconds between two checks for replies
REFRESH = 3.0  # seconds between two checks for nodes
IDENTIFICATION = 120.0  # seconds a node has to identify itself, and after which a rejected one is asked again
APP_FAILED = (1, 2)  # Flower's codes for an app that cannot be loaded, or raised an error
Envelope = Mapping[str, Any]
Arrived = Message | WireError  # a reply, or why it cannot be read
Log = Callable[[str], None]


class Grid(Protocol):
    """What is needed of Flower's grid."""

    def get_nodes(self) -> Iterable[Any]:
        """The nodes that are online."""
        ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their ids, None for those that could not be sent."""
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to these messages that have arrived."""
        ...


def pack(envelope: Envelope) -> RecordDict:
    """The content of a message."""
    return RecordDict({RECORD: ConfigRecord(dict(envelope))})


def unpack(message: Message) -> Envelope:
    """The envelope in a message; `WireError` if there is none."""
    try:
        return dict(message.content[RECORD])
    except (KeyError, ValueError, TypeError, AttributeError):
        raise WireError("a message without an envelope") from None


@dataclass(eq=False)
class Mailbox:
    """Sends requests to clients and collects their replies; meanwhile it finds out which nodes are online.

    ``run`` names the run, so that replies to another one are rejected; ``log`` gets a line for each message that is
    rejected or late outside of rounds.
    """

    grid: Grid
    registry: Registry
    run: str
    deadline: float
    log: Log
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    lost_bytes: int = 0
    _identifying: dict[str, tuple[Node, float]] = field(default_factory=dict)  # by message id
    _rejected: dict[str, tuple[str, float]] = field(default_factory=dict)  # by key: why, and until when
    _late: dict[str, tuple[int, str, float]] = field(default_factory=dict)
    _refreshed: float = float("-inf")
    _pending: dict[str, int] = field(default_factory=dict)
    _kind: str = ""
    _sent: float = 0.0

    def request(self, kind: str, envelopes: Mapping[int, Envelope]) -> None:
        """Send a request to each of these clients that is online."""
        self.refresh_nodes()
        clients = [client for client in envelopes if self.registry.node(client) is not None]
        messages: list[Message] = []
        for client in clients:
            node = self.registry.node(client)
            assert node is not None
            content = pack({"run": self.run, "client": client, **envelopes[client]})
            messages.append(Message(content, node.id, kind, ttl=2 * self.deadline))
        numbers = self._pushed(messages) if messages else []
        self._pending = {number: client for client, number in zip(clients, numbers, strict=True) if number}
        self._kind, self._sent = kind, self.clock()

    def collect(self, until: Until) -> tuple[dict[int, Envelope], dict[int, str]]:
        """The replies until the round ends, and whose message was rejected; offline clients are not waited for."""
        pending, replies, rejected = self._pending, dict[int, Envelope](), dict[int, str]()
        while not until.done(len(replies), len(pending), self.clock() - self._sent):
            arrived = self._arrived(pending)
            for number, message in arrived.items():
                client = pending.pop(number)
                try:
                    replies[client] = self._read(message, client)
                except WireError as error:
                    rejected[client] = str(error)
                except _NoReplyError:
                    continue
            if not arrived and pending:
                self.sleep(POLL)
                self.refresh_nodes()
        expires = self._sent + 2 * self.deadline
        self._late |= {message: (client, self._kind, expires) for message, client in pending.items()}
        self._pending = {}
        return replies, rejected

    def refresh_nodes(self) -> None:
        """Update who is online; unknown nodes are asked to identify themselves."""
        now = self.clock()
        if now - self._refreshed < REFRESH:
            return
        self._refreshed = now
        seen = self.grid.get_nodes()
        nodes = [Node(node.node_id, node.public_key.hex() or str(node.node_id), node.name) for node in seen]
        online = {node.key for node in nodes}
        self._rejected = {key: entry for key, entry in self._rejected.items() if key in online}
        asked = {node.key for node, _ in self._identifying.values()}
        asked |= {key for key, (_, until) in self._rejected.items() if now < until}
        unknown = [node for node in self.registry.meet(nodes) if node.key not in asked]
        messages = [Message(pack({"run": self.run}), node.id, "query", ttl=IDENTIFICATION) for node in unknown]
        if messages:
            for node, number in zip(unknown, self._pushed(messages), strict=True):
                if number:
                    self._identifying[number] = node, now + IDENTIFICATION
        self._identifying = {number: (node, end) for number, (node, end) in self._identifying.items() if now < end}
        self._late = {number: late for number, late in self._late.items() if now < late[2]}

    def wait(self) -> None:
        """Until something may have happened."""
        self.sleep(POLL)
        self.refresh_nodes()
        self._arrived({})

    def reachable(self) -> list[int]:
        """The clients that are online; after a start, those that were online before have a deadline to come back.

        So a server that was stopped samples the clients it would have sampled.
        """
        self.refresh_nodes()
        end = self.clock() + self.deadline
        if not self.registry.complete():
            self.log(f"waiting for clients that were online before: {sorted(self.registry.missed)}")
        while not self.registry.complete() and self.clock() < end:
            self.wait()
        self.registry.missed.clear()
        return self.registry.here()

    def _pushed(self, messages: list[Message]) -> list[str | None]:
        """The ids of messages sent; None for those that were not, for which Flower may give fewer ids."""
        numbers: list[str | None] = [number or None for number in self.grid.push_messages(messages)]
        numbers += [None] * (len(messages) - len(numbers))
        if unsent := numbers.count(None):
            self.log(f"not sent: Flower did not accept {unsent} of {len(messages)} messages")
        return numbers

    def _arrived(self, pending: Mapping[str, int]) -> dict[str, Arrived]:
        """The replies that have come, by the request; identifications and late replies are dealt with here."""
        arrived: dict[str, Arrived] = {}
        for number in [*pending, *self._identifying, *self._late]:
            message = self._pulled(number)
            if message is None:
                continue
            if number in pending:
                arrived[number] = message
            elif number in self._identifying:
                self._identified(message, self._identifying.pop(number)[0])
            elif number in self._late:
                self._note_late(message, *self._late.pop(number)[:2])
        return arrived

    def _pulled(self, number: str) -> Arrived | None:
        """The reply to a message, if there is one.

        One is pulled at a time. Whose reply it is, we have from the SuperLink, for what a message says of itself its
        sender wrote; and one that cannot be read takes no others with it.
        """
        try:
            return next(iter(self.grid.pull_messages([number])), None)
        except Exception as error:
            self.grid.get_nodes()  # raises an error itself if the trouble is not the message, but Flower
            return WireError(f"a message that cannot be read ({type(error).__name__})")

    def _identified(self, message: Arrived, node: Node) -> None:
        """A node says which client it has; one that is rejected is asked again later, or when it has been offline.

        It may have been repaired meanwhile; or the node whose place it takes, killed and started anew, may be gone.
        """
        try:
            envelope = self._opened(message)
            self.registry.claim(node, envelope.get("client"), envelope.get("samples"))
        except WireError as error:
            before, _ = self._rejected.get(node.key, ("", 0.0))
            self._rejected[node.key] = str(error), self.clock() + IDENTIFICATION
            if str(error) != before:
                self.log(f"rejected: {error}")
        except _NoReplyError:
            pass

    def _note_late(self, message: Arrived, client: int, kind: str) -> None:
        if isinstance(message, WireError) or message.has_error():
            return
        try:
            blob = unpack(message).get("blob", b"")
        except WireError:
            return
        resent = "; its update will be resent" if kind == "train" else ""
        self.lost_bytes += len(blob) if isinstance(blob, bytes) and kind == "train" else 0
        self.log(f"reply from client {client} arrived after the deadline and was discarded{resent}")

    def _read(self, message: Arrived, client: int) -> Envelope:
        envelope, node = self._opened(message), self.registry.node(client)
        assert not isinstance(message, WireError)
        if node is not None and message.metadata.src_node_id != node.id:
            raise WireError("another node replied for it")
        if envelope.get("client") != client:
            raise WireError(f"it says it is client {envelope.get('client')!r:.40}")
        return envelope

    def _opened(self, message: Arrived) -> Envelope:
        if isinstance(message, WireError):
            raise message
        if message.has_error():
            if message.error.code in APP_FAILED:
                raise WireError(f"node {message.metadata.src_node_id}: its app raised an error; its own log says which")
            raise _NoReplyError
        envelope = unpack(message)
        if envelope.get("run") != self.run:
            raise WireError(f"a reply to another run ({envelope.get('run')!r:.40})")
        if "error" in envelope:
            raise WireError(f"node {message.metadata.src_node_id}: {envelope['error']}")
        return envelope


class _NoReplyError(Exception):
    """Flower says that there will be no reply: the node is gone, or time was up."""
