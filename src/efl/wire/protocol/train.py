"""Requests to train, and what comes back.

Messages are made once and not changed, but not frozen: of these there are many, and being frozen takes as long again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, get_args

from efl.errors import WireError
from efl.wire.catchup import HOWS, NO_MODEL, How
from efl.wire.header import Header
from efl.wire.limits import MOST_BROADCASTS
from efl.wire.message import Message
from efl.wire.protocol.base import TypedMessage, joined, split
from efl.wire.reader import Buffer

COARSEST = 63  # quarters of an octave
NO_ROUND = -1  # stands for the round of something that has not happened yet
_LARGEST_CHECKSUM = 2**32 - 1
_WITHOUT_START = 11  # entries in the header of a request to a client that has a model

Outcome = Literal["update", "recovered", "diverged", "needs_model"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass
class TrainRequest(TypedMessage):
    """Asks a client to train in a round.

    ``log`` brings the client's model from version ``base`` to ``version``, as ``how`` says: ``each`` broadcast by
    itself, all of them ``merged`` into one payload or ``summed`` to one increment, or the whole ``model``.

    Attributes:
        clients: How many clients of equal share there are, as in `RoundSettings`.
        coarseness: Of uploaded lattices, as in `RoundSettings`.
        accepted: The last round whose upload from this client was used; `NO_ROUND` for none.
        start: For a client without a model, the checksum of the first model, which it may rebuild from its seed.
        shared: Encoded payloads that all clients of the round get alike.
        personal: An encoded payload for this client alone.

    Example:
        >>> from efl.wire.limits import Limits
        >>> request = TrainRequest(3, 7, 0.1, 20, 32, 50, 0, accepted=1, how="each", base=2, version=3, log=[b"..."])
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
    clients: int
    coarseness: int
    accepted: int
    how: How
    base: int
    version: int
    start: int | None = None
    shared: Mapping[str, bytes] = field(default_factory=dict)
    personal: bytes | None = None
    log: Sequence[Buffer] = ()

    def envelope(self) -> Message:
        """See `TypedMessage`."""
        header: list[Any] = [self.version, self.round, self.client, self.eta, self.local_steps, self.batch_size]
        header += [self.clients, self.coarseness, self.accepted, HOWS.index(self.how), self.base]
        if self.start is not None:
            header.append(self.start)
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
            header.integer("clients"),
            header.integer("coarseness", least=-COARSEST, most=COARSEST),
            header.integer("accepted", least=NO_ROUND),
            header.choice("how", HOWS),
            header.integer("base", least=NO_MODEL, most=version),
            version,
            header.integer("start", most=_LARGEST_CHECKSUM) if len(message.header) > _WITHOUT_START else None,
            *split(message.parts),
            message.log,
        )
        header.end()
        if len(request.log) != (version - request.base if request.how == "each" else 1):
            raise WireError(f"{len(request.log)} broadcasts do not bring version {request.base} to {version}")
        return request


@dataclass
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
    parts: Mapping[str, Buffer] = field(default_factory=dict)
    recovered: bool = False
    diverged: bool = False
    needs_model: bool = False

    def envelope(self) -> Message:
        """See `TypedMessage`."""
        header: list[Any] = [self.round, self.client, OUTCOMES.index(self.outcome)]
        if self.needs_model:
            return Message(self.KIND, header)
        return Message(self.KIND, [*header, self.steps, self.loss], {} if self.diverged else self.parts)

    @property
    def outcome(self) -> Outcome:
        """What became of the training, in a word."""
        if self.needs_model or self.diverged:
            return "needs_model" if self.needs_model else "diverged"
        return "recovered" if self.recovered else "update"

    @classmethod
    def from_envelope(cls, message: Message) -> Self:
        """See `TypedMessage`."""
        header = Header(message.header)
        round_, client, outcome = header.integer("round"), header.integer("client"), header.choice("outcome", OUTCOMES)
        diverged = outcome == "diverged"
        if outcome == "needs_model":
            reply = cls(round_, client, needs_model=True)
        else:
            steps, loss = header.integer("steps"), header.number("loss", finite=not diverged)
            reply = cls(round_, client, steps, loss, message.parts, outcome == "recovered", diverged)
        header.end()
        if message.parts and (diverged or reply.needs_model):
            raise WireError("a reply without an update that brings one")
        return reply
