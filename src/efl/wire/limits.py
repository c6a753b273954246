"""How large a message may be, decided before any of it is read.

Both sides know the model, so they know the largest honest message of every kind. Whatever claims to be larger is
refused by its length or by the lengths it declares, before anything is allocated for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from efl.layout import Layout
from efl.wire.payloads import largest_payload

LONGEST_HEADER = 8192  # bytes of an envelope without its list of broadcasts
LONGEST_LENGTH = 9  # bytes MessagePack takes for a length
MOST_PARTS = 16
MOST_METRICS = 64
LONGEST_NAME = 64  # characters of a part's or a metric's name
LONGEST_TEXT = 1024  # bytes of any text in a header
MOST_BROADCASTS = 10_000  # in one catch-up, however large the model
BUFFERS = "buffers"  # the part with BatchNorm statistics and the like, which is as long as they are
_ANY_LENGTH = 2**40


@dataclass(frozen=True)
class Limits:
    """The largest message that is read.

    Attributes:
        payload: Bytes of one encoded payload.
        buffers: Bytes of the part with the model's float buffers.
        catch_up: Bytes of all broadcasts of a request together.
        broadcasts: How many there may be.
        names: The parts a message may have; None for any.

    Example:
        >>> Limits.of(Layout(((10, 64), (10,))), names=["update"]).catch_up
        2605
    """

    payload: int = _ANY_LENGTH
    buffers: int = _ANY_LENGTH
    catch_up: int = _ANY_LENGTH
    broadcasts: int = MOST_BROADCASTS
    names: frozenset[str] | None = None

    @classmethod
    def of(cls, layout: Layout, buffers: int = 0, names: Collection[str] | None = None) -> Limits:
        """The limits for messages about one model.

        Args:
            layout: The model's tensors.
            buffers: How many float buffers it has.
            names: The parts to expect, without the buffers; None if any name will do.

        Returns:
            Limits that every honest message about this model keeps.
        """
        dense = dense_bytes(layout.n)
        expected = None if names is None else frozenset(names) | ({BUFFERS} if buffers else set())
        return cls(largest_payload(layout), dense_bytes(buffers), dense, most_broadcasts(layout.n), expected)

    def part(self, name: str) -> int:
        """The most bytes of a part."""
        return self.buffers if name == BUFFERS else self.payload


def most_broadcasts(n: int) -> int:
    """How many broadcasts one request may bring, for a model of n parameters; a client further behind gets the model.

    Each takes some time, however short it is, and all of them no more than a few times what the model takes.
    """
    return min(MOST_BROADCASTS, max(300, n // 640))


def dense_bytes(n: int) -> int:
    """The length of an encoded vector in full: kind, values, checksum."""
    return 1 + 4 * n + 4
