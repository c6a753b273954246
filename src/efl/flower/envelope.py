"""What a message of Flower's holds: one record, with the bytes that server or client made and a few entries more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from flwr.app import ConfigRecord, Message, RecordDict

from efl.errors import WireError

RECORD = "efl"
Envelope = Mapping[str, Any]


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
