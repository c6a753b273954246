"""Train-time transforms, one client's mini-batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_structure, tree_unflatten

from efl.errors import UserError, first_line
from efl.federation import Federation
from efl.federation.preprocessing import Inputs
from efl.rng import Purpose, seeded_torch, stream


class Augmentation:
    """A federation's `augment` for some clients in one round.

    Every call draws from PyTorch's default generator, seeded by the client's own stream for the step at hand: the same
    beside whomever the client works, and however often a step's batch is asked for.
    """

    def __init__(self, augment: Inputs, seed: int, round_: int, clients: Sequence[int], steps: int) -> None:
        self.augment = augment
        streams = [stream(seed, Purpose.AUGMENTATION, round_, client) for client in clients]
        self.seeds = [rng.integers(2**63, size=steps).tolist() for rng in streams]

    def __call__(self, x: Any, step: int) -> Any:
        """What clients are trained on in this step, in place of their inputs: (C, B, …), or several such by name."""
        tensors, structure = tree_flatten(x)
        rows = []
        for seeds, row in zip(self.seeds, zip(*tensors, strict=True), strict=False):  # clients that are done have none
            with seeded_torch(seeds[step], tensors[0].device):
                rows.append(self.augment(tree_unflatten([tensor.clone() for tensor in row], structure)))
        return tree_map(lambda *parts: torch.stack(parts), *rows)


def check_augment(federation: Federation, batch_size: int) -> None:
    """Raise `UserError` unless the transform, if there is one, turns a batch into another of as many samples."""
    if federation.augment is None:
        return
    x = federation.inputs_of(torch.arange(batch_size) % len(federation.x))
    try:
        with seeded_torch(0):
            found = federation.augment(tree_map(torch.clone, x))
    except Exception as error:  # somebody else's function
        raise UserError(f"augment fails on a batch {_described(x)}: {first_line(error)}") from None
    if not (tree_structure(found) == tree_structure(x) and all(map(_alike, tree_leaves(x), tree_leaves(found)))):
        raise UserError(f"augment makes {_described(found)} of a batch {_described(x)}; it must return such a batch")


def _alike(one: Tensor, other: Any) -> bool:
    """Whether these are batches of as many samples of one type."""
    return isinstance(other, Tensor) and other.dtype == one.dtype and other.shape[:1] == one.shape[:1]


def _described(x: Any) -> str:
    parts = [f"{tuple(one.shape)} of {one.dtype}" for one in tree_leaves(x) if isinstance(one, Tensor)]
    return ", ".join(parts) or type(x).__name__
