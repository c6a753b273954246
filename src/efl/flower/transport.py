"""Clients behind Flower: requests and replies travel as messages of its grid, one blob each.

A message holds one record, `Letter`: the bytes that the coordinator or the client made, and a few words around them.
Replies count until the deadline of the round. One that comes later is discarded, and its bytes are billed as lost. With
the next request its client learns of it, and takes what it sent back into its residual: work may be late, but not lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import ConfigRecord, Message, RecordDict

from efl.errors import WireError
from efl.server.registry import Node, Registry
from efl.transport.base import Exchange

RECORD = "efl"
POLL = 0.5  # seconds between two looks for replies
LOOK_AROUND = 3.0  # seconds between two looks for nodes
GREETING = 120.0  # seconds a node has to say who it is, and after which one that was turned away is asked again
APP_FAILED = (1, 2)  # Flower's codes for an app that cannot be loaded, or raised an error
Letter = Mapping[str, Any]
Arrived = Message | WireError  # an answer, or why it cannot be read


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


def enclosed(letter: Letter) -> RecordDict:
    """The content of a message."""
    return RecordDict({RECORD: ConfigRecord(dict(letter))})


def opened(message: Message) -> Letter:
    """The letter in a message; `WireError` if there is none."""
    try:
        return dict(message.content[RECORD])
    except (KeyError, ValueError, TypeError, AttributeError):
        raise WireError("a message without a letter") from None


@dataclass(eq=False)
class Post:
    """Sends letters to clients and brings back what they answer in time; on the side, finds out who is there.

    ``run`` names the run, so that answers to another one are refused; ``log`` is told, in a line each, what was refused
    outside of rounds.
    """

    grid: Grid
    registry: Registry
    run: str
    deadline: float
    log: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    lost_bytes: int = 0
    _greeted: dict[str, tuple[Node, float]] = field(default_factory=dict)  # by message id
    _turned_away: dict[str, tuple[str, float]] = field(default_factory=dict)  # by key: why, and until when
    _late: dict[str, tuple[int, str, float]] = field(default_factory=dict)
    _looked: float = float("-inf")

    def ask(self, kind: str, letters: Mapping[int, Letter]) -> tuple[dict[int, Letter], dict[int, str]]:
        """What clients answer until the deadline, and whose answer was none; who is away is not waited for."""
        self.look_around()
        waiting = self._send(kind, letters)
        answers: dict[int, Letter] = {}
        refused: dict[int, str] = {}
        end = self.clock() + self.deadline
        while waiting and self.clock() < end:
            arrived = self._collect(waiting)
            for number, message in arrived.items():
                client = waiting.pop(number)
                try:
                    answers[client] = self._read(message, client)
                except WireError as error:
                    refused[client] = str(error)
                except _SilenceError:
                    continue
            if not arrived and waiting:
                self.sleep(POLL)
                self.look_around()
        self._late |= {message: (client, kind, end + self.deadline) for message, client in waiting.items()}
        return answers, refused

    def look_around(self) -> None:
        """Who is online; strangers are asked who they are."""
        now = self.clock()
        if now - self._looked < LOOK_AROUND:
            return
        self._looked = now
        seen = self.grid.get_nodes()
        nodes = [Node(node.node_id, node.public_key.hex() or str(node.node_id), node.name) for node in seen]
        online = {node.key for node in nodes}
        self._turned_away = {key: entry for key, entry in self._turned_away.items() if key in online}
        asked = {node.key for node, _ in self._greeted.values()}
        asked |= {key for key, (_, until) in self._turned_away.items() if now < until}
        strangers = [node for node in self.registry.meet(nodes) if node.key not in asked]
        letter = {"run": self.run}
        messages = [Message(enclosed(letter), node.id, "query", ttl=GREETING) for node in strangers]
        if messages:
            for node, number in zip(strangers, self._pushed(messages), strict=True):
                if number:
                    self._greeted[number] = node, now + GREETING
        self._greeted = {number: (node, end) for number, (node, end) in self._greeted.items() if now < end}
        self._late = {number: late for number, late in self._late.items() if now < late[2]}

    def wait(self) -> None:
        """Until something may have happened."""
        self.sleep(POLL)
        self.look_around()
        self._collect({})

    def _send(self, kind: str, letters: Mapping[int, Letter]) -> dict[str, int]:
        """The ids of the messages, by which answers are known, and to whom they went."""
        clients = [client for client in letters if self.registry.node(client) is not None]
        messages: list[Message] = []
        for client in clients:
            node = self.registry.node(client)
            assert node is not None
            content = enclosed({"run": self.run, "client": client, **letters[client]})
            messages.append(Message(content, node.id, kind, ttl=2 * self.deadline))
        numbers = self._pushed(messages) if messages else []
        return {number: client for client, number in zip(clients, numbers, strict=True) if number}

    def _pushed(self, messages: list[Message]) -> list[str | None]:
        """The ids of messages sent; None for those that were not, for which Flower may give fewer ids."""
        numbers: list[str | None] = [number or None for number in self.grid.push_messages(messages)]
        numbers += [None] * (len(messages) - len(numbers))
        if unsent := numbers.count(None):
            self.log(f"not sent: Flower did not take {unsent} of {len(messages)} messages")
        return numbers

    def _collect(self, waiting: Mapping[str, int]) -> dict[str, Arrived]:
        """The answers that have come, by the message they answer; greetings and late answers are dealt with here."""
        arrived: dict[str, Arrived] = {}
        for number in [*waiting, *self._greeted, *self._late]:
            message = self._pulled(number)
            if message is None:
                continue
            if number in waiting:
                arrived[number] = message
            elif number in self._greeted:
                self._welcome(message, self._greeted.pop(number)[0])
            elif number in self._late:
                self._note_late(message, *self._late.pop(number)[:2])
        return arrived

    def _pulled(self, number: str) -> Arrived | None:
        """The answer to a message, if there is one.

        One is pulled at a time. Whose answer it is, we have from the SuperLink, for what a message says of itself its
        sender wrote; and one that cannot be read takes no others with it.
        """
        try:
            return next(iter(self.grid.pull_messages([number])), None)
        except Exception as error:
            self.grid.get_nodes()  # raises an error itself if the trouble is not the message, but Flower
            return WireError(f"a message that cannot be read ({type(error).__name__})")

    def _welcome(self, message: Arrived, node: Node) -> None:
        """A stranger says who it is; one that cannot be believed is asked again later, or when it has been away.

        It may have been repaired meanwhile; or the node whose place it takes, killed and started anew, may be gone.
        """
        try:
            letter = self._letter(message)
            self.registry.claim(node, letter.get("client"), letter.get("samples"))
        except WireError as error:
            before, _ = self._turned_away.get(node.key, ("", 0.0))
            self._turned_away[node.key] = str(error), self.clock() + GREETING
            if str(error) != before:
                self.log(f"refused: {error}")
        except _SilenceError:
            pass

    def _note_late(self, message: Arrived, client: int, kind: str) -> None:
        if isinstance(message, WireError) or message.has_error():
            return
        try:
            blob = opened(message).get("blob", b"")
        except WireError:
            return
        self.lost_bytes += len(blob) if isinstance(blob, bytes) else 0
        self.log(
            f"late: client {client} answered a {kind} request after the deadline; its work comes with the next one"
        )

    def _read(self, message: Arrived, client: int) -> Letter:
        letter, node = self._letter(message), self.registry.node(client)
        assert not isinstance(message, WireError)
        if node is not None and message.metadata.src_node_id != node.id:
            raise WireError("somebody else answered for it")
        if letter.get("client") != client:
            raise WireError(f"it says it is client {letter.get('client')!r:.40}")
        return letter

    def _letter(self, message: Arrived) -> Letter:
        if isinstance(message, WireError):
            raise message
        if message.has_error():
            if message.error.code in APP_FAILED:
                raise WireError(f"node {message.metadata.src_node_id}: its app raised an error; its own log says which")
            raise _SilenceError
        letter = opened(message)
        if letter.get("run") != self.run:
            raise WireError(f"an answer to another run ({letter.get('run')!r:.40})")
        if "error" in letter:
            raise WireError(f"node {message.metadata.src_node_id}: {letter['error']}")
        return letter


class _SilenceError(Exception):
    """Flower says that there will be no answer: the node is gone, or time was up."""


class FlowerTransport:
    """Hands requests to Flower and waits for replies, for as long as a round may last."""

    def __init__(self, post: Post, work_seconds: float) -> None:
        self.post, self.work_seconds = post, work_seconds

    def exchange(self, round_: int, requests: Mapping[int, bytes]) -> Exchange:
        """One round; whoever is silent at the deadline was inactive, whoever did less than E steps incomplete."""
        letters = {client: {"blob": blob, "seconds": self.work_seconds} for client, blob in requests.items()}
        answers, refused = self.post.ask("train", letters)
        steps, replies = dict.fromkeys(requests, 0), dict[int, bytes]()
        for client, letter in answers.items():
            done, blob = letter.get("steps"), letter.get("blob")
            steps[client] = done if isinstance(done, int) and done > 0 else 0
            if isinstance(blob, bytes):
                replies[client] = blob
        lost, self.post.lost_bytes = self.post.lost_bytes, 0
        return Exchange(replies, steps, lost, refused)
