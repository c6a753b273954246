"""The ledger: every byte that was really encoded, by direction and by what it is for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from efl.wire.reader import Buffer

Direction = Literal["up", "down"]
KINDS = ("update", "field", "catch-up", "state", "lost", "overhead")
"""What bytes are for, in the order they are shown."""


@dataclass
class Ledger:
    """Bytes sent by clients (up) and by the server (down), in all and in the round at hand.

    ``update`` is this round's change of the model, ``field`` the elastic field, ``catch-up`` what earlier rounds
    changed and first models, ``state`` whatever else an algorithm exchanges, ``lost`` uploads that did not arrive,
    ``overhead`` headers and checksums.
    """

    total: dict[Direction, Counter[str]] = field(default_factory=lambda: {"up": Counter(), "down": Counter()})
    round: dict[Direction, Counter[str]] = field(default_factory=lambda: {"up": Counter(), "down": Counter()})

    def start_round(self) -> None:
        """Begin counting a new round."""
        self.round = {"up": Counter(), "down": Counter()}

    def sent(self, direction: Direction, message: int, kinds: Mapping[str, int]) -> None:
        """A message of so many bytes, of which ``kinds`` says what they are for; the rest is overhead."""
        total, round_ = self.total[direction], self.round[direction]
        overhead = message
        for kind, count in kinds.items():
            if count:
                total[kind] += count
                round_[kind] += count
                overhead -= count
        total["overhead"] += overhead
        round_["overhead"] += overhead

    def round_dict(self) -> dict[str, dict[str, int]]:
        """The bytes of the round at hand, by direction and kind."""
        return {direction: dict(kinds) for direction, kinds in self.round.items()}

    def state_dict(self) -> dict[str, dict[str, int]]:
        """All bytes so far, by direction and kind."""
        return {direction: dict(kinds) for direction, kinds in self.total.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Restore what `state_dict` returned."""
        self.total = {"up": Counter(state["up"]), "down": Counter(state["down"])}

    @property
    def up(self) -> int:
        """All bytes from clients."""
        return self.total["up"].total()

    @property
    def down(self) -> int:
        """All bytes to clients."""
        return self.total["down"].total()


def kinds_of(parts: Mapping[str, Buffer], kinds: Mapping[str, str]) -> defaultdict[str, int]:
    """What the bytes of a message's parts are for.

    Args:
        parts: Encoded payloads by name.
        kinds: What each part is for, one of `KINDS`; parts that are not named are ``state``.

    Returns:
        Bytes by kind; 0 for those that are not there.

    Example:
        >>> dict(kinds_of({"update": b"12345", "control": b"123", "buffers": b"12"}, {"update": "update"}))
        {'update': 5, 'state': 5}
    """
    counts: defaultdict[str, int] = defaultdict(int)  # a `Counter` takes several times as long
    for name, blob in parts.items():
        counts[kinds.get(name, "state")] += len(blob)
    return counts
