"""A loss of the user's own: any function of what the model returns and the targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from efl.errors import first_line
from efl.models.outputs import tensor_of
from efl.training.tasks.base import Pairs, Task
from efl.training.tasks.classification import Classification


class OwnLossError(RuntimeError):
    """The user's function raised something."""


class OwnLoss(Task):
    """``function(outputs, targets)`` gives a mini-batch's loss; ``outputs`` are what the model returns, as they are.

    A sample's loss is that of a mini-batch of one.
    """

    has_likelihood: ClassVar[bool] = False

    function: Callable[[Any, Tensor], Tensor]

    def read(self, answer: Any) -> Any:
        """All of it."""
        return answer

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """What the function says; one number in whatever shape."""
        found = self._called(outputs, targets)
        return found.reshape(()) if isinstance(found, Tensor) and found.dim() and found.numel() == 1 else found

    def sample_losses(self, outputs: Any, targets: Tensor) -> Tensor:
        """One by one."""
        samples = (slice(number, number + 1) for number in range(len(targets)))
        return torch.stack([self._called(part(outputs, one), targets[one]).reshape(()) for one in samples])

    def _called(self, outputs: Any, targets: Tensor) -> Tensor:
        try:
            return self.function(outputs, targets)
        except Exception as error:  # whatever it does
            raise OwnLossError(f"the loss fails: {type(error).__name__}: {first_line(error)}") from error

    def correct(self, outputs: Any, targets: Tensor) -> Pairs:
        """As if outputs were scores of classes."""
        return Classification().correct(tensor_of(outputs), targets)


def part(outputs: Any, which: slice) -> Any:
    """Some samples of whatever a model returns."""
    return tree_map(lambda one: one[which] if isinstance(one, Tensor) and one.dim() else one, outputs)
