"""Randomness by address: (seed, purpose, round, client) names a stream, and no generator is shared.

So the result of a run depends neither on the order in which clients are run, nor on how many run
side by side, nor on whether the run was stopped and resumed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


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
    ROUNDING = 12
    AUGMENTATION = 13
    NOISE = 16
    HOSTILE = 19


_LARGEST_WORD = 2**32 - 1


def stream(seed: int, purpose: Purpose, round_: int = 0, client: int = 0) -> np.random.Generator:
    """The generator at an address.

    >>> stream(0, Purpose.BATCHES, 3, 7).integers(100) == stream(0, Purpose.BATCHES, 3, 7).integers(100)
    np.True_
    """
    address = (seed, int(purpose), round_, client)
    if min(address) < 0 or max(address) > _LARGEST_WORD:
        return np.random.default_rng(address)
    return np.random.Generator(np.random.PCG64(np.array(address, dtype=np.uint32)))  # the same, a third sooner


def torch_seed(seed: int, purpose: Purpose, round_: int = 0, client: int = 0) -> int:
    """A seed for torch's own generator at the same kind of address."""
    return int(stream(seed, purpose, round_, client).integers(2**63))


_default_generator = threading.RLock()


def _renew_lock() -> None:
    global _default_generator  # a forked process has no thread that could release the old one
    _default_generator = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def seeded_torch(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Within, PyTorch's default generators start from ``seed``; afterwards they are as they were before.

    Layers such as Dropout, and the initialisation of layers, draw from the default generator, which all threads share:
    one thread at a time gets in here, so that runs in several threads do not draw each other's numbers.

    >>> import torch
    >>> with seeded_torch(3):
    ...     one = torch.rand(2)
    >>> with seeded_torch(3):
    ...     bool((one == torch.rand(2)).all())
    True
    """
    import torch

    cuda = device is not None and device.type == "cuda"
    with _default_generator, torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield
