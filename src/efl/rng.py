"""Randomness by address: (seed, purpose, round, client) names a stream, and no generator is shared.

So the result of a run depends neither on the order in which clients are run, nor on how many run
side by side, nor on whether the run was stopped and resumed.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers is for. Values are part of every result: never renumber them."""

    DATA = 1
    PARTITION = 2
    MODEL = 3
    SELECTION = 4
    BEHAVIOUR = 5
    BATCHES = 6
    FISHER = 7
    OWN_MODEL = 8
    LAYERS = 9
    MEMBERSHIP = 10
    VALIDATION = 11


def stream(seed: int, purpose: Purpose, round_: int = 0, client: int = 0) -> np.random.Generator:
    """The generator at an address.

    >>> stream(0, Purpose.BATCHES, 3, 7).integers(100) == stream(0, Purpose.BATCHES, 3, 7).integers(100)
    np.True_
    """
    return np.random.default_rng((seed, int(purpose), round_, client))


def torch_seed(seed: int, purpose: Purpose, round_: int = 0, client: int = 0) -> int:
    """A seed for torch's own generator at the same kind of address."""
    return int(stream(seed, purpose, round_, client).integers(2**63))
