"""Reading a message's header: every entry is asked for once, with its type and range, and nothing may be left over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from efl.errors import WireError
from efl.wire.message import is_name

LARGEST = 2**31 - 1  # of rounds, clients, steps and the like
Choice = TypeVar("Choice", bound=str)


class Header:
    """Takes a header apart.

    >>> header = Header({"round": 3})
    >>> header.integer("round")
    3
    >>> header.end()
    """

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self._entries = entries
        self._taken = 0

    def integer(self, key: str, least: int = 0, most: int = LARGEST) -> int:
        """A whole number from ``least`` to ``most``; True and False are none."""
        value = self._take(key)
        if type(value) is not int or not least <= value <= most:
            raise WireError(f"header entry {key!r} is missing or not a whole number from {least} to {most}")
        return value

    def number(self, key: str, least: float = -math.inf, *, finite: bool = True) -> float:
        """A number of at least ``least``."""
        return _number(key, self._take(key), least, finite=finite)

    def flag(self, key: str) -> bool:
        """Whether an entry is there; if it is, it must be True."""
        if key not in self._entries:
            return False
        if self._take(key) is not True:
            raise WireError(f"header entry {key!r} is neither true nor left out")
        return True

    def choice(self, key: str, choices: Sequence[Choice]) -> Choice:
        """One of some words."""
        value = self._take(key)
        for choice in choices:
            if value == choice:
                return choice
        raise WireError(f"header entry {key!r} is missing or none of {', '.join(choices)}")

    def text(self, key: str) -> str:
        """One short line."""
        value = self._take(key)
        if not isinstance(value, str) or len(value) > WireError.LONGEST or not value.isprintable():
            raise WireError(f"header entry {key!r} is missing or not a line of text")
        return value

    def metrics(self, key: str) -> dict[str, tuple[float, float]]:
        """Pairs of a sum and a weight ≥ 0, by name."""
        value = self._take(key)
        if not isinstance(value, dict) or not all(map(is_name, value)):
            raise WireError(f"header entry {key!r} is missing or no metrics")
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in value.values()):
            raise WireError("a metric is a sum and a weight")
        return {name: (_number(name, pair[0]), _number(name, pair[1], 0.0)) for name, pair in value.items()}

    def end(self) -> None:
        """Nothing may be left."""
        if self._taken != len(self._entries):
            raise WireError("the header has entries that do not belong there")

    def _take(self, key: str) -> Any:
        self._taken += key in self._entries
        return self._entries.get(key)


def _number(key: str, value: object, least: float = -math.inf, *, finite: bool = True) -> float:
    if type(value) is not float and type(value) is not int:
        raise WireError(f"header entry {key!r} is missing or not a number")
    number = float(value)
    if finite and not (math.isfinite(number) and number >= least):
        raise WireError(f"header entry {key!r} is not a finite number, or too small")
    return number
