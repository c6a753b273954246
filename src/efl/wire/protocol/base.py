"""What all typed messages have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from efl.errors import WireError
from efl.wire.header import Header
from efl.wire.limits import Limits
from efl.wire.message import PERSONAL, Message
from efl.wire.reader import Buffer


class TypedMessage:
    """A message of one kind.

    Each has ``to_bytes`` and ``from_bytes``, and ``envelope`` and ``from_envelope``, what they are made of.
    """

    KIND: ClassVar[str]
    MOST_LOG: ClassVar[int] = 0

    @classmethod
    def from_bytes(cls, blob: bytes, limits: Limits) -> Self:
        """Read a message of this type.

        Args:
            blob: Bytes that may be anything.
            limits: The largest message that is taken, see `Limits.of`.

        Returns:
            A message with every field checked, its payloads still encoded.

        Raises:
            WireError: ``blob`` is anything else.
        """
        return cls.from_envelope(Message.from_bytes(blob, cls.KIND, limits, cls.MOST_LOG))

    @classmethod
    def from_envelope(cls, message: Message) -> Self:
        """The message in an envelope, its header checked."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """The bytes that travel."""
        return self.envelope().to_bytes()

    def envelope(self) -> Message:
        """The envelope it travels in."""
        raise NotImplementedError


def joined(shared: Mapping[str, bytes], personal: bytes | None) -> Mapping[str, bytes]:
    """The parts of a request: what all clients get, and what this one gets."""
    return shared if personal is None else {**shared, PERSONAL: personal}


def split(parts: Mapping[str, Buffer]) -> tuple[Mapping[str, bytes], bytes | None]:
    """The inverse of `joined`; a request's parts are kept, and passed on to other processes."""
    shared = {name: bytes(blob) for name, blob in parts.items()}
    return shared, shared.pop(PERSONAL, None)


def end_without_payloads(header: Header, message: Message) -> None:
    """Nothing may be left in the header, and no payload may come with it."""
    header.end()
    if message.parts or message.log:
        raise WireError("payloads in a message that has none")
