"""Clients behind Flower: requests and replies travel as messages of its grid, one record each.

Replies count until the round ends. One that comes later is discarded, and its bytes are billed as lost. With the next
request its client learns of it and resends the update: it may be late, but is not lost. Where rounds are asynchronous
it is used in the next one, up to two deadlines after the request. A client whose node goes away with a request is asked
again in that round if it is back soon (``rejoin``); one that had replied already gives the same reply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from flwr.app import Message

from efl.errors import WireError
from efl.fleet.clock import Until
from efl.flower.activity import WAITING
from efl.flower.envelope import Envelope, Grid, pack, unpack
from efl.server.registry import Node, Registry

POLL = 0.5  # seconds between two checks for replies
REFRESH = 3.0  # seconds between two checks for nodes
IDENTIFICATION = 120.0  # seconds a node has to identify itself, and after which a rejected one is asked again
APP_FAILED = (1, 2)  # Flower's codes for an app that cannot be loaded, or raised an error
NAMED = 5  # clients that a line names
Arrived = Message | WireError  # a reply, or why it cannot be read
Log = Callable[[str], None]
Found = tuple[dict[int, Envelope], dict[int, str]]  # replies, and why others were rejected


@dataclass(eq=False)
class Mailbox:
    """Sends requests to clients and collects their replies; meanwhile it finds out which nodes are online.

    ``run`` names the run, so that replies to another one are rejected; ``log`` gets a line for each message that is
    rejected or late outside of rounds; ``note`` is an `activity.ActivityFile`; ``keeps_late`` has rounds use late ones.
    """

    grid: Grid
    registry: Registry
    run: str
    deadline: float
    log: Log
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    rejoin: float = 0.0
    note: Callable[..., None] = lambda *_, **__: None
    keeps_late: bool = False
    lost_bytes: int = 0
    _identifying: dict[str, tuple[Node, float]] = field(default_factory=dict)  # by message id
    _rejected: dict[str, tuple[str, float]] = field(default_factory=dict)  # by key: why, and until when
    _late: dict[str, tuple[int, str, float]] = field(default_factory=dict)
    _came: Found = field(default_factory=lambda: ({}, {}))  # late, and not collected yet
    _refreshed: float = float("-inf")
    _pending: dict[str, int] = field(default_factory=dict)
    _envelopes: Mapping[int, Envelope] = field(default_factory=dict)  # of the request under way, by client
    _gone: dict[int, float] = field(default_factory=dict)  # clients that were online, and since when they are not
    _awaited: dict[int, float] = field(default_factory=dict)  # those of them to be asked if they are back by then
    _kind: str = ""
    _sent: float = 0.0

    @property
    def at_work(self) -> set[int]:
        """Clients whose replies to requests of earlier rounds may still come, and will be used."""
        return {client for client, kind, _ in self._late.values() if kind == "train"} if self.keeps_late else set()

    def request(self, kind: str, envelopes: Mapping[int, Envelope]) -> None:
        """Send a request to each of these clients that is online."""
        self.refresh_nodes()
        self.note(WAITING, self.registry.here())
        self._kind, self._envelopes, self._pending = kind, envelopes, {}
        self._sent = self.clock()
        self._ask(envelopes)
        self._sent = self.clock()  # sending may have taken long
        gone = {client: at for client, at in self._gone.items() if client in envelopes}
        self._awaited = {client: at + self.rejoin for client, at in gone.items()}

    def _ask(self, clients: Collection[int]) -> None:
        """Send the request under way to those of these clients that are online."""
        online = [(client, node) for client in clients if (node := self.registry.node(client)) is not None]
        elapsed = self.clock() - self._sent
        messages: list[Message] = []
        for client, node in online:
            envelope = {"run": self.run, "client": client, **self._envelopes[client]}
            if "seconds" in envelope:  # to work, which end for all at the same time
                envelope["seconds"] = max(1.0, envelope["seconds"] - elapsed)
            messages.append(Message(pack(envelope), node.id, self._kind, ttl=2 * self.deadline))
        numbers = self._pushed(messages) if messages else []
        self._pending |= {number: client for (client, _), number in zip(online, numbers, strict=True) if number}

    def collect(self, until: Until) -> Found:
        """The replies until the round ends, and whose message was rejected; clients long offline are not waited for."""
        pending, late = self._pending, self._kind == "train"
        replies, rejected = found = self._came if late else ({}, {})
        while True:
            absent = self._absent(replies.keys() | rejected.keys())
            others, here = self.at_work if late else set[int](), self.registry.here()
            asked = {*self._envelopes, *others, *replies, *rejected}
            self.note(self._kind, here, asked, replied=tuple(sorted(replies)), rejected=dict(rejected))
            if until.done(len(replies), len(pending) + len(absent) + len(others), self.clock() - self._sent):
                break
            arrived = self._arrived(pending)
            for number, message in arrived.items():
                if not self._take(message, client := pending.pop(number), found):
                    self._lose(client)
            if not arrived:
                self.sleep(POLL)
                self.refresh_nodes()
                self._ask(absent)
        self._late |= {n: (client, self._kind, self._sent + 2 * self.deadline) for n, client in pending.items()}
        self._pending, self._envelopes, self._came = {}, {}, ({}, {}) if late else self._came
        if self._gone:  # who went away may be back by the next round
            self._refreshed = float("-inf")
        return found

    def _lose(self, client: int) -> None:
        """The client's node went away with the request."""
        now = self._gone.setdefault(client, self.clock())
        self._awaited.setdefault(client, now + self.rejoin)
        self.registry.lose(client)

    def _absent(self, done: Collection[int]) -> list[int]:
        """Clients that went away a short time ago, before they could reply: they are asked once they are back."""
        settled = {*done, *self._pending.values()}
        return [client for client, end in self._awaited.items() if self.clock() < end and client not in settled]

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
        before = self.registry.here()
        unknown = [node for node in self.registry.meet(nodes) if node.key not in asked]
        here = self.registry.here()
        left = dict.fromkeys(set(before).difference(here), now)
        self._gone = {client: at for client, at in (left | self._gone).items() if client not in here}
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
        self.note(WAITING, self.registry.here())

    def wait_for_clients(self, enough: int, seconds: float) -> None:
        """Until so many clients are online; after so many seconds one will do. Says for whom it waits."""
        end, said = self.clock() + seconds, ""
        while (here := len(self.registry.here())) < enough:
            who = f"{here} of {enough} are online; {self._missing()}"
            if here and self.clock() >= end:
                self.log(f"waited for {seconds:.0f} s; beginning with fewer clients: {who}")
                return
            if who != said:
                self.log(f"waiting for clients: {who}")
                said = who
            self.wait()

    def _missing(self) -> str:
        """Which places are empty, and which nodes were rejected and why."""
        here = set(self.registry.here())
        empty = [str(client) for client in range(self.registry.clients) if client not in here]
        more = f" and {len(empty) - NAMED} more" if len(empty) > NAMED else ""
        reasons = [why for why, _ in self._rejected.values()][:NAMED]
        return "; ".join([f"missing: {', '.join(empty[:NAMED])}{more}", *(f"rejected: {why}" for why in reasons)])

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
                self._came_late(message, *self._late.pop(number)[:2])
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

    def _came_late(self, message: Arrived, client: int, kind: str) -> None:
        """Keep the reply for the next round, if rounds are asynchronous and it is one to train."""
        if not self.keeps_late or kind != "train":
            self._note_late(message, client, kind)
        elif not self._take(message, client, self._came):
            self.registry.lose(client)

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

    def _take(self, message: Arrived, client: int, found: Found) -> bool:
        """Put a reply where it belongs; whether there is one."""
        try:
            found[0][client] = self._read(message, client)
        except WireError as error:
            found[1][client] = str(error)
        except _NoReplyError:
            return False
        return True

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
