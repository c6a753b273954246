"""What may be noted about the gradients of local steps while they are taken."""

from __future__ import annotations

import torch
from torch import Tensor


class SquaredGradients:
    """The running Fisher diagonal: batch size × mean squared mini-batch gradient, without a pass of its own.

    Every fourth step is added, the first among them: a pass over memory in each would cost more than it tells.
    """

    EVERY = 4

    def __init__(self, like: Tensor, batch_size: int) -> None:
        self.squares = torch.zeros_like(like)
        self.batch_size = batch_size

    def watches(self, step: int) -> bool:
        """Whether the squared gradient of this step is to be added to ``squares``."""
        return step % self.EVERY == 0

    def mean(self, steps: Tensor) -> Tensor:
        """The diagonal u (C, n), when each row has done so many ``steps`` (C,)."""
        seen = (steps.to(self.squares.device) + self.EVERY - 1) // self.EVERY
        return self.squares.mul_((self.batch_size / seen.clamp(min=1)).unsqueeze(1)).cpu()
