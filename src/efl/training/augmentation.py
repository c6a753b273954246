"""Train-time transforms, one client's mini-batch at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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

    def __call__(self, x: Tensor, step: int) -> Tensor:
        """What clients are trained on in this step, in place of their inputs x (C, B, …)."""
        rows = []
        for seeds, batch in zip(self.seeds, x, strict=False):  # clients that are done have no row any more
            with seeded_torch(seeds[step], x.device):
                rows.append(self.augment(batch.clone()))
        return torch.stack(rows)


def check_augment(federation: Federation, batch_size: int) -> None:
    """Raise `UserError` unless the transform, if there is one, turns a batch into another of as many samples."""
    if federation.augment is None:
        return
    x = federation.inputs_of(torch.arange(batch_size) % len(federation.x))
    try:
        with seeded_torch(0):
            found = federation.augment(x.clone())
    except Exception as error:  # somebody else's function
        raise UserError(f"augment fails on a batch of shape {tuple(x.shape)}: {first_line(error)}") from None
    if not isinstance(found, Tensor) or len(found) != len(x) or found.dtype != x.dtype:
        what = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"augment makes {what} of a batch {tuple(x.shape)} of {x.dtype}; it must return such a batch")
