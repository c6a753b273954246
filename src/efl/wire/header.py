"""Reading a message's header: one entry after the other is asked for, with its type and range; none may be left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from efl.errors import WireError
from efl.wire.message import is_name

LARGEST = 2**31 - 1  # of rounds, clients, steps and the like
Choice = TypeVar("Choice", bound=str)


class Header:
    """Takes a header apart, from front to back; what an entry is called is for error messages.

    >>> header = Header([3])
    >>> header.integer("round")
    3
    >>> header.end()
    """

    def __init__(self, entries: Sequence[Any]) -> None:
        self._entries = iter(entries)

    def integer(self, key: str, least: int = 0, most: int = LARGEST) -> int:
        """A whole number from ``least`` to ``most``; True and False are none."""
        value = next(self._entries, None)
        if type(value) is not int or not least <= value <= most:
            raise WireError(f"header entry {key!r} is missing or not a whole number from {least} to {most}")
        return value

    def number(self, key: str, least: float = -math.inf, *, finite: bool = True) -> float:
        """A number of at least ``least``."""
        return _number(key, next(self._entries, None), least, finite=finite)

    def flag(self, key: str) -> bool:
        """True or False."""
        value = next(self._entries, None)
        if value is not True and value is not False:
            raise WireError(f"header entry {key!r} is missing or neither true nor false")
        return value

    def choice(self, key: str, choices: Sequence[Choice]) -> Choice:
        """One of some words, which travels as its place among them."""
        value = next(self._entries, None)
        if type(value) is not int or not 0 <= value < len(choices):
            raise WireError(f"header entry {key!r} is missing or none of {', '.join(choices)}")
        return choices[value]

    def text(self, key: str) -> str:
        """One short line."""
        value = next(self._entries, None)
        if not isinstance(value, str) or len(value) > WireError.LONGEST or not value.isprintable():
            raise WireError(f"header entry {key!r} is missing or not a line of text")
        return value

    def metrics(self, key: str) -> dict[str, tuple[float, float]]:
        """Pairs of a sum and a weight ≥ 0, by name."""
        value = next(self._entries, None)
        if not isinstance(value, dict) or not all(map(is_name, value)):
            raise WireError(f"header entry {key!r} is missing or no metrics")
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in value.values()):
            raise WireError("a metric is a sum and a weight")
        return {name: (_number(name, pair[0]), _number(name, pair[1], 0.0)) for name, pair in value.items()}

    def end(self) -> None:
        """Nothing may be left."""
        if next(self._entries, self) is not self:
            raise WireError("the header has entries that do not belong there")


def _number(key: str, value: object, least: float = -math.inf, *, finite: bool = True) -> float:
    if type(value) is not float and type(value) is not int:
        raise WireError(f"header entry {key!r} is missing or not a number")
    number = float(value)
    if finite and not (math.isfinite(number) and number >= least):
        raise WireError(f"header entry {key!r} is not a finite number, or too small")
    return number
