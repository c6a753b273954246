"""The ledger: every byte that was really encoded, by direction and by what it is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["up", "down"]
KINDS = ("update", "field", "catch-up", "state", "lost", "overhead")


@dataclass
class Ledger:
    """Bytes sent by clients (up) and by the server (down), in all and in the round at hand.

    ``update`` is this round's change of the model, ``field`` the elastic field, ``catch-up`` what earlier rounds
    changed and first models, ``state`` whatever else an algorithm exchanges, ``lost`` what clients sent in vain,
    ``overhead`` headers and checksums.
    """

    total: dict[Direction, Counter[str]] = field(default_factory=lambda: {"up": Counter(), "down": Counter()})
    round: dict[Direction, Counter[str]] = field(default_factory=lambda: {"up": Counter(), "down": Counter()})

    def start_round(self) -> None:
        """Begin counting a new round."""
        self.round = {"up": Counter(), "down": Counter()}

    def sent(self, direction: Direction, message: int, kinds: Mapping[str, int]) -> None:
        """A message of so many bytes, of which ``kinds`` says what they are for; the rest is overhead."""
        known = {kind: count for kind, count in kinds.items() if count}
        known["overhead"] = message - sum(known.values())
        self.total[direction].update(known)
        self.round[direction].update(known)

    @property
    def up(self) -> int:
        """All bytes from clients."""
        return self.total["up"].total()

    @property
    def down(self) -> int:
        """All bytes to clients."""
        return self.total["down"].total()


def kinds_of(parts: Mapping[str, bytes]) -> Counter[str]:
    """What the parts of a message are for."""
    kinds: Counter[str] = Counter()
    for name, blob in parts.items():
        kinds[name if name in ("update", "field") else "state"] += len(blob)
    return kinds
