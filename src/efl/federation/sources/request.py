"""What a source is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Request:
    """A data set's full name, how to deal it out, and where prepared data sets lie."""

    dataset: str
    clients: int
    partition: str
    test_fraction: float
    seed: int
    directory: Path

    @property
    def dealing(self) -> dict[str, Any]:
        """The arguments of `Federation.from_tensors` that every source passes on."""
        return {
            "clients": self.clients,
            "partition": self.partition,
            "test_fraction": self.test_fraction,
            "seed": self.seed,
            "name": self.dataset,
        }
