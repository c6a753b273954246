"""What every kind of payload can do, and the table by which bytes find their kind.

A new kind is a class with a decorator; nothing else needs to know of it:

    @register(100)
    @dataclass(frozen=True, eq=False)
    class Sparse(Payload): ...

The first byte of an encoded payload is its kind. Numbers below 64 are this package's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.context import Context
from efl.wire.reader import CHECKSUM, Buffer, Reader, opened, sealed
from efl.wire.sparse import add_at

Vector = NDArray[np.float32]
Positions = NDArray[np.int64]


class Payload(ABC):
    """A vector, or a change of one, on its way.

    ``values`` is the vector's new value or the increment, as the kind says.
    """

    changes_vector: ClassVar[bool] = True  # whether it may update a model: whether it has values, onto and add_to
    absolute: ClassVar[bool] = False  # whether it is a new value, and not an increment

    if TYPE_CHECKING:  # at run time a property would stand in the way of a dataclass's field

        @property
        def values(self) -> Vector:
            """The vector's new value, or the increment."""
            ...

    @abstractmethod
    def pack(self, context: Context) -> bytes:
        """Its bytes, the kind first, without checksum."""

    @classmethod
    @abstractmethod
    def unpack(cls, kind: int, reader: Reader, context: Context) -> Self:
        """Read what `pack` wrote after the kind.

        Args:
            kind: The kind, if the class has several.
            reader: The rest of the bytes. They may be anything: check before allocating more than a few times
                what `most_bytes` says.
            context: What both sides know.

        Raises:
            WireError: They are something else.
        """

    @classmethod
    @abstractmethod
    def most_bytes(cls, layout: Layout) -> int:
        """What `pack` never exceeds, for a vector of this layout."""

    def onto(self, reference: Vector) -> Vector:
        """The vector after receiving this, if it was ``reference`` before."""
        raise TypeError(f"{type(self).__name__} is no update")

    def add_to(self, total: Vector, weight: float, reference: Vector) -> None:
        """Add ``weight`` times the increment to ``total``, in place.

        Args:
            total: The sum so far.
            weight: Of this increment.
            reference: The vector that the sender started from, from which a new value differs by its increment.
        """
        raise TypeError(f"{type(self).__name__} is no update")


class SparseIncrement(Payload):
    """An increment of ``values`` at increasing ``positions``, and of nothing in between."""

    if TYPE_CHECKING:

        @property
        def positions(self) -> Positions:
            """Where the values belong."""
            ...

    def onto(self, reference: Vector) -> Vector:
        """The reference with the increment added."""
        result = reference.copy()
        add_at(result, self.positions, self.values, 1.0)
        return result

    def add_to(self, total: Vector, weight: float, reference: Vector) -> None:
        """Add ``weight`` times the increment, in time that grows with the values only."""
        add_at(total, self.positions, self.values, weight)


Kind = TypeVar("Kind", bound=type[Payload])
_KINDS: dict[int, type[Payload]] = {}


def register(*kinds: int) -> Callable[[Kind], Kind]:
    """Class decorator: bytes that begin with one of these numbers are such a payload.

    Raises:
        ValueError: A number is taken, or no byte.
    """
    for kind in kinds:
        if kind in _KINDS or not 0 < kind < 256:
            raise ValueError(f"payload kind {kind} is taken or not from 1 to 255")

    def registered(cls: Kind) -> Kind:
        _KINDS.update(dict.fromkeys(kinds, cls))
        return cls

    return registered


def encode(payload: Payload, context: Context) -> bytes:
    """The bytes of a payload, with their checksum.

    >>> from efl.wire import Dense
    >>> blob = encode(Dense(np.float32([1, 2])), Context.flat(2))
    >>> decode(blob, Context.flat(2)).values.tolist()
    [1.0, 2.0]
    """
    return sealed(payload.pack(context))


def decode(blob: Buffer, context: Context) -> Payload:
    """The payload in some bytes.

    Args:
        blob: Bytes that may be anything.
        context: What both sides know; the payload must fit it.

    Returns:
        A payload whose numbers are all finite.

    Raises:
        WireError: ``blob`` is anything else.
    """
    cls = kind_of(blob)
    if len(blob) > cls.most_bytes(context.layout) + CHECKSUM:
        raise WireError(f"{cls.__name__} of {len(blob)} bytes; at most {cls.most_bytes(context.layout)} are taken")
    try:
        reader = Reader(opened(blob))
        payload = cls.unpack(reader.byte(), reader, context)
        reader.end()
    except WireError:
        raise
    except Exception as error:  # whatever garbage makes the parts above raise, it is one thing: not a payload
        raise WireError(f"not a payload: {error!r}") from error
    return payload


def kind_of(blob: Buffer) -> type[Payload]:
    """The kind that an encoded payload claims to be; `WireError` if there is no such kind."""
    if not blob or blob[0] not in _KINDS:
        raise WireError("a payload of no known kind")
    return _KINDS[blob[0]]


def largest_payload(layout: Layout) -> int:
    """No encoded payload of any kind is longer than this."""
    return max(cls.most_bytes(layout) for cls in set(_KINDS.values())) + CHECKSUM


def add_scaled(total: Vector, values: Vector, weight: float) -> None:
    """``total += weight * values`` as PyTorch does it, in one rounding where the processor can."""
    import torch  # slow to import, and not needed to read and write messages

    torch.from_numpy(total).add_(torch.from_numpy(values), alpha=weight)
