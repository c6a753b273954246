"""Requests to save and restore clients' state, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from efl.errors import WireError
from efl.wire.header import Header
from efl.wire.message import Message
from efl.wire.protocol.base import TypedMessage, end_without_payloads


@dataclass(frozen=True)
class SaveStateRequest(TypedMessage):
    """Asks whoever keeps clients' state to save it, so that it can be restored as of this round.

    >>> from efl.wire.limits import Limits
    >>> SaveStateRequest.from_bytes(SaveStateRequest(12).to_bytes(), Limits())
    SaveStateRequest(round=12)
    """

    KIND: ClassVar[str] = "save"

    round: int

    def envelope(self) -> Message:
        """See `TypedMessage`."""
        return Message(self.KIND, [self.round])

    @classmethod
    def from_envelope(cls, message: Message) -> Self:
        """See `TypedMessage`."""
        header = Header(message.header)
        request = cls(header.integer("round"))
        end_without_payloads(header, message)
        return request


@dataclass(frozen=True)
class RestoreStateRequest(SaveStateRequest):
    """Asks whoever keeps clients' state to go back to what was saved for this round."""

    KIND: ClassVar[str] = "restore"


@dataclass(frozen=True)
class StateReply(TypedMessage):
    """State was saved or restored, or ``error`` says in one line why not.

    >>> from efl.wire.limits import Limits
    >>> StateReply.from_bytes(StateReply(12, "no space left").to_bytes(), Limits()).error
    'no space left'
    """

    KIND: ClassVar[str] = "state"

    round: int
    error: str | None = None

    def envelope(self) -> Message:
        """See `TypedMessage`."""
        return Message(self.KIND, [self.round, *([] if self.error is None else [str(WireError(self.error))])])

    @classmethod
    def from_envelope(cls, message: Message) -> Self:
        """See `TypedMessage`."""
        header = Header(message.header)
        reply = cls(header.integer("round"), header.text("error") if len(message.header) > 1 else None)
        end_without_payloads(header, message)
        return reply
