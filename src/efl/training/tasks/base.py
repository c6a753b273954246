"""What a task is: a loss per sample, the likelihood it stands for, and what outputs and targets must be like."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from efl.errors import UserError
from efl.models.outputs import tensor_of
from efl.settings import Settings

Pairs = tuple[Tensor, Tensor]  # sums and weights (B,)


class Task(Settings):
    """A task. Fields are its settings; subclasses say what a sample's loss is.

    A mini-batch's loss is the mean of its samples' losses, by `sample_weights` where there are some. The Fisher
    diagonal is the mean, with the same weights, of the squared gradients of these losses: element by element a loss
    stands for the likelihood p ∝ exp(−loss), from which `draw` draws targets; a sample's loss is the mean over its
    elements (positions of a sequence, labels, outputs of a regression).

    Example:
        >>> class Absolute(Task):
        ...     def sample_losses(self, outputs, targets):
        ...         return (outputs.squeeze(-1) - targets).abs()
        >>> Absolute().loss(torch.zeros(2, 1), torch.tensor([1.0, 3.0]))
        tensor(2.)
    """

    default_metrics: ClassVar[tuple[str, ...]] = ("loss",)
    has_likelihood: ClassVar[bool] = True  # whether targets can be drawn from the model
    in_nats: ClassVar[bool] = False  # whether a loss is as large in whatever units targets are

    @property
    def plain(self) -> bool:
        """Whether it is cross-entropy with one label per sample and nothing more, which compiled code knows."""
        return False

    def fitted(self, y: Tensor) -> Self:
        """The task for these targets; settings left to it are decided."""
        return self

    # Loss

    def read(self, answer: Any) -> Any:
        """What `sample_losses` takes of the network's answer."""
        return tensor_of(answer)

    def sample_losses(self, outputs: Any, targets: Tensor) -> Tensor:
        """The loss of every sample, (B,)."""
        raise NotImplementedError

    def sample_weights(self, targets: Tensor) -> Tensor | None:
        """How much every sample counts (B,); None if all count alike."""
        return None

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """The loss of a mini-batch; 0 if nothing in it counts."""
        losses, weights = self.sample_losses(outputs, targets), self.sample_weights(targets)
        if weights is None:
            return losses.mean()
        return (losses * weights).sum() / weights.sum().clamp(min=torch.finfo(losses.dtype).tiny)

    # Likelihood

    def draw(self, outputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Targets like ``targets``, drawn from the model's own outputs."""
        raise UserError("fisher = 'true' draws targets from the model, but this loss has no likelihood; use 'running'")

    # Metrics

    def correct(self, outputs: Tensor, targets: Tensor) -> Pairs:
        """How much of every sample is predicted correctly, and how much of it counts."""
        raise UserError("accuracy needs classes; name other metrics")

    # Checks

    def bad_target(self, y: Tensor, classes: int) -> tuple[int, str] | None:
        """The first sample whose target the task cannot use, and what is wrong with it."""
        return None

    def misfit(self, outputs: Any, targets: Tensor, classes: int) -> str | None:
        """What is wrong with the outputs for these targets, if something is."""
        return None
