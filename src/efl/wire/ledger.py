"""The ledger: every byte that was really encoded, by round and direction."""

from dataclasses import dataclass


@dataclass
class Ledger:
    """Bytes sent by clients (up) and by the server (down), in all and in the round at hand."""

    up: int = 0
    down: int = 0
    round_up: int = 0
    round_down: int = 0

    def start_round(self) -> None:
        """Begin counting a new round."""
        self.round_up = self.round_down = 0

    def sent_up(self, count: int) -> None:
        """A client sent so many bytes."""
        self.up += count
        self.round_up += count

    def sent_down(self, count: int) -> None:
        """The server sent so many bytes."""
        self.down += count
        self.round_down += count
