"""Requests to evaluate a model, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from efl.errors import WireError
from efl.wire.header import Header
from efl.wire.limits import BUFFERS
from efl.wire.message import Message
from efl.wire.protocol.base import TypedMessage, end_without_payloads, joined, split
from efl.wire.reader import Buffer


@dataclass(frozen=True)
class EvaluateRequest(TypedMessage):
    """Asks a client how good a model is on its own test data, or the personalised model that it makes of it.

    Attributes:
        model: The whole model, encoded.
        shared: Encoded payloads that all clients get alike; the model's buffers, and for a personalised model what a
            `TrainRequest` of the round would bring.
        personal: For a personalised model, an encoded payload for this client alone.
        personalised: Train for a round first, with these settings, and evaluate the client's personalised model.

    Example:
        >>> from efl.wire.limits import Limits
        >>> request = EvaluateRequest(3, 7, b"...")
        >>> EvaluateRequest.from_bytes(request.to_bytes(), Limits()) == request
        True
    """

    KIND: ClassVar[str] = "evaluate"
    MOST_LOG: ClassVar[int] = 1

    round: int
    client: int
    model: Buffer
    shared: Mapping[str, bytes] = field(default_factory=dict)
    personal: bytes | None = None
    personalised: bool = False
    eta: float = 0.0
    local_steps: int = 0
    batch_size: int = 0
    clients: int = 0

    @property
    def buffers(self) -> bytes | None:
        """The model's buffers, encoded, if it has some."""
        return self.shared.get(BUFFERS)

    def envelope(self) -> Message:
        """See `TypedMessage`."""
        header: list[Any] = [self.round, self.client, self.personalised]
        if self.personalised:
            header += [self.eta, self.local_steps, self.batch_size, self.clients]
        return Message(self.KIND, header, joined(self.shared, self.personal), [self.model])

    @classmethod
    def from_envelope(cls, message: Message) -> Self:
        """See `TypedMessage`."""
        header = Header(message.header)
        if len(message.log) != 1:
            raise WireError("an evaluation of one model brings one model")
        shared, personal = split(message.parts)
        round_, client = header.integer("round"), header.integer("client")
        if header.flag("personalised"):
            settings = (
                header.number("eta", least=0.0),
                header.integer("local_steps", 1),
                header.integer("batch_size", 1),
                header.integer("clients"),
            )
            request = cls(round_, client, message.log[0], shared, personal, True, *settings)
        else:
            request = cls(round_, client, message.log[0], shared, personal)
        header.end()
        if not request.personalised and (personal is not None or set(shared) - {BUFFERS}):
            raise WireError("an evaluation of the global model needs nothing but the model")
        return request


@dataclass(frozen=True)
class EvaluateReply(TypedMessage):
    """A client's metrics, each as a sum over its samples and the weight to divide it by; both are finite.

    Example:
        >>> from efl.wire.limits import Limits
        >>> reply = EvaluateReply(3, 7, {"accuracy": (41.0, 50.0)})
        >>> EvaluateReply.from_bytes(reply.to_bytes(), Limits()).metrics["accuracy"]
        (41.0, 50.0)
    """

    KIND: ClassVar[str] = "evaluated"

    round: int
    client: int
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def envelope(self) -> Message:
        """See `TypedMessage`."""
        metrics = {name: [total, weight] for name, (total, weight) in self.metrics.items()}
        return Message(self.KIND, [self.round, self.client, metrics])

    @classmethod
    def from_envelope(cls, message: Message) -> Self:
        """See `TypedMessage`."""
        header = Header(message.header)
        reply = cls(header.integer("round"), header.integer("client"), header.metrics("metrics"))
        end_without_payloads(header, message)
        return reply
