"""What a server that defends itself knows of each client: a row of numbers and a few sketches, as tensors.

Rows are for clients that have sent something, in the order in which they first did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.state import ServerState

CLIENTS, NUMBERS, SKETCHES = "defence_clients", "defence_numbers", "defence_sketches"


class Column(IntEnum):
    """What is known of a client, in numbers."""

    ROUND = 0  # of its last update
    SENT = 1  # the length of what it sent, per unit of ηE
    MEANT = 2  # and of what that means, its memory added
    FISHER_SUM = 3
    FISHER_MOST = 4
    SHIFT = 5  # the length of its field's displacement
    SHIFT_MOST = 6
    ENTRIES = 7
    SECANT = 8  # the mean of its secants
    TESTS = 9  # how many these are
    SPREAD = 10  # the mean of their squares
    NEAREST = 11  # the largest cosine of its last update with another client's
    RATE = 12
    TRUST = 13  # of late
    KNOWN = 14  # whether anything is kept of it
    AGREEMENT = 15  # the mean cosine of where it pushed with where the model went
    AGREEMENT_SPREAD = 16  # the mean of their squares
    FIDELITY = 17  # how much of its last update's squared length was meant; the rest is noise of rounding


class Kept(IntEnum):
    """What is known of a client, in sketches."""

    MEMORY = 0  # what the server believes it remembers
    MODELS = 1  # the mean of the models it was sent
    UPDATES = 2  # the mean of its updates, each of length one
    LAST = 3  # what it sent last, of length one


FIELD = slice(Column.FISHER_SUM, Column.SHIFT_MOST + 1)


def no_standing(width: int) -> Mapping[str, Tensor]:
    """Nobody is known."""
    return {
        CLIENTS: torch.zeros(0, dtype=torch.int64),
        NUMBERS: torch.zeros(0, len(Column), dtype=torch.float64),
        SKETCHES: torch.zeros(0, len(Kept), width),
    }


@dataclass(eq=False)
class Standing:
    """A copy of what is known, to be changed and put back."""

    clients: NDArray[np.int64]
    numbers: NDArray[np.float64]
    sketches: NDArray[np.float32]

    @classmethod
    def of(cls, server: ServerState, clients: Sequence[int]) -> Standing:
        """What the server knows, with a row for each of these clients."""
        known, numbers, sketches = (server.tensors[name].numpy() for name in (CLIENTS, NUMBERS, SKETCHES))
        if numbers.shape[1] < len(Column):  # from a checkpoint of an earlier version: its clients are tested anew
            numbers = np.pad(numbers, ((0, 0), (0, len(Column) - numbers.shape[1])))
            numbers[:, Column.TESTS], numbers[:, Column.FIDELITY] = 0, 1.0
        there = set(known.tolist())
        new = np.array(sorted(client for client in clients if client not in there), dtype=np.int64)
        blank = np.zeros((len(new), numbers.shape[1]))
        blank[:, Column.ROUND], blank[:, Column.TRUST], blank[:, Column.FIDELITY] = -1, 1.0, 1.0
        empty = np.zeros((len(new), *sketches.shape[1:]), np.float32)
        return cls(np.concatenate([known, new]), np.concatenate([numbers, blank]), np.concatenate([sketches, empty]))

    def tensors(self) -> dict[str, Tensor]:
        """To be kept by the server."""
        found = (self.clients, self.numbers, self.sketches)
        return {name: torch.from_numpy(one) for name, one in zip((CLIENTS, NUMBERS, SKETCHES), found, strict=True)}

    def rows(self, clients: Sequence[int]) -> NDArray[np.int64]:
        """Where these clients are."""
        order = np.argsort(self.clients)
        return order[np.searchsorted(self.clients, np.array(clients, dtype=np.int64), sorter=order)]

    def medians(self, round_: int, window: int) -> NDArray[np.float64]:
        """Of every column, over the clients that sent something in the last rounds; each has one vote.

        Nobody can move them far: it takes half of the clients, whatever each of them sends.
        """
        ordered = np.sort(self.numbers[self.lately(round_, window)], axis=0)
        middle: NDArray[np.float64] = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        return middle

    def lately(self, round_: int, window: int) -> NDArray[np.bool_]:
        """Who sent something in the last rounds."""
        heard: NDArray[np.bool_] = self.numbers[:, Column.ROUND] > round_ - window
        return heard
