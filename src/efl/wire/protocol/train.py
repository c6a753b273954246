"""Requests to train, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, get_args

from efl.errors import WireError
from efl.wire.catchup import NO_MODEL, How
from efl.wire.header import Header
from efl.wire.limits import MOST_BROADCASTS
from efl.wire.message import Message
from efl.wire.protocol.base import TypedMessage, joined, split

NO_ROUND = -1  # stands for the round of something that has not happened yet
_LARGEST_CHECKSUM = 2**32 - 1


@dataclass(frozen=True)
class TrainRequest(TypedMessage):
    """Asks a client to train in a round.

    ``log`` brings the client's model from version ``base`` to ``version``, as ``how`` says: ``each`` broadcast by
    itself, all of them ``merged`` into one payload, or the whole ``model``.

    Attributes:
        accepted: The last round whose upload from this client was used; `NO_ROUND` for none.
        start: For a client without a model, the checksum of the first model, which it may rebuild from its seed.
        shared: Encoded payloads that all clients of the round get alike.
        personal: An encoded payload for this client alone.

    Example:
        >>> from efl.wire.limits import Limits
        >>> request = TrainRequest(3, 7, 0.1, 20, 32, accepted=1, how="each", base=2, version=3, log=[b"..."])
        >>> TrainRequest.from_bytes(request.to_bytes(), Limits()) == request
        True
    """

    KIND: ClassVar[str] = "request"
    MOST_LOG: ClassVar[int] = MOST_BROADCASTS

    round: int
    client: int
    eta: float
    local_steps: int
    batch_size: int
    accepted: int
    how: How
    base: int
    version: int
    start: int | None = None
    shared: Mapping[str, bytes] = field(default_factory=dict)
    personal: bytes | None = None
    log: Sequence[bytes] = ()

    def envelope(self) -> Message:
        """See `TypedMessage`."""
        header: dict[str, Any] = {
            "round": self.round,
            "client": self.client,
            "eta": self.eta,
            "local_steps": self.local_steps,
            "batch_size": self.batch_size,
            "accepted": self.accepted,
            "how": self.how,
            "base": self.base,
            "version": self.version,
        }
        if self.start is not None:
            header["start"] = self.start
        return Message(self.KIND, header, joined(self.shared, self.personal), self.log)

    @classmethod
    def from_envelope(cls, message: Message) -> Self:
        """See `TypedMessage`."""
        header = Header(message.header)
        version = header.integer("version")
        request = cls(
            header.integer("round"),
            header.integer("client"),
            header.number("eta", least=0.0),
            header.integer("local_steps", least=1),
            header.integer("batch_size", least=1),
            header.integer("accepted", least=NO_ROUND),
            header.choice("how", get_args(How)),
            header.integer("base", least=NO_MODEL, most=version),
            version,
            header.integer("start", most=_LARGEST_CHECKSUM) if "start" in message.header else None,
            *split(message.parts),
            message.log,
        )
        header.end()
        if len(request.log) != (version - request.base if request.how == "each" else 1):
            raise WireError(f"{len(request.log)} broadcasts do not bring version {request.base} to {version}")
        return request


@dataclass(frozen=True)
class TrainReply(TypedMessage):
    """What came of a client's training.

    Attributes:
        steps: The local steps it did.
        loss: Their mean training loss; finite unless ``diverged``.
        parts: Its upload, encoded.
        recovered: The upload makes up for an earlier one that never arrived.
        diverged: Training left the finite numbers; there is no upload.
        needs_model: The client did not train, for it has no model to start from; the next request must bring it.

    Example:
        >>> from efl.wire.limits import Limits
        >>> reply = TrainReply(3, 7, steps=20, loss=0.5, parts={"update": b"..."})
        >>> TrainReply.from_bytes(reply.to_bytes(), Limits()) == reply
        True
    """

    KIND: ClassVar[str] = "reply"

    round: int
    client: int
    steps: int = 0
    loss: float = 0.0
    parts: Mapping[str, bytes] = field(default_factory=dict)
    recovered: bool = False
    diverged: bool = False
    needs_model: bool = False

    def envelope(self) -> Message:
        """See `TypedMessage`."""
        header: dict[str, Any] = {"round": self.round, "client": self.client}
        if self.needs_model:
            return Message(self.KIND, {**header, "needs_model": True})
        header |= {"steps": self.steps, "loss": self.loss}
        if self.diverged:
            return Message(self.KIND, {**header, "diverged": True})
        if self.recovered:
            header["recovered"] = True
        return Message(self.KIND, header, self.parts)

    @classmethod
    def from_envelope(cls, message: Message) -> Self:
        """See `TypedMessage`."""
        header = Header(message.header)
        round_, client = header.integer("round"), header.integer("client")
        needs_model, diverged = header.flag("needs_model"), header.flag("diverged")
        if needs_model:
            reply = cls(round_, client, needs_model=True)
        else:
            steps, loss = header.integer("steps"), header.number("loss", finite=not diverged)
            reply = cls(round_, client, steps, loss, message.parts, header.flag("recovered"), diverged)
        header.end()
        if (needs_model or diverged) and (message.parts or reply.recovered or (needs_model and diverged)):
            raise WireError("a reply without an update that brings one")
        return reply
