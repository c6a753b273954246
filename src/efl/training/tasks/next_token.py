"""Next-token prediction: what a causal language model says at a position is compared with the token after it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from efl.training.tasks.base import Pairs
from efl.training.tasks.classification import Classification
from efl.training.tasks.registry import TASKS


@TASKS.register("next_token")
class NextToken(Classification):
    """Cross-entropy of the token that follows; targets (B, positions) are the tokens themselves, -100 for padding.

    Where targets are shifted already, as those of ``shakespeare`` are, ``cross_entropy`` is the loss.
    """

    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "loss")
    needs: ClassVar[str] = "next_token needs tokens 0, 1, …; pass y.long() if that is what they are"

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the tokens that follow another."""
        return super().sample_losses(outputs[:, :-1], targets[:, 1:])

    def sample_weights(self, targets: Tensor) -> Tensor | None:
        """By how many tokens follow another."""
        return super().sample_weights(targets[:, 1:])

    def draw(self, outputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Every token but the first by the model's probabilities, given those of the sample before it."""
        return torch.cat([targets[:, :1], super().draw(outputs[:, :-1], targets[:, 1:], generator)], dim=1)

    def correct(self, outputs: Tensor, targets: Tensor) -> Pairs:
        """The share of tokens that are predicted."""
        return super().correct(outputs[:, :-1], targets[:, 1:])

    def among(self, best: int, outputs: Tensor, targets: Tensor) -> Pairs:
        """The share of tokens that are among the likeliest."""
        return super().among(best, outputs[:, :-1], targets[:, 1:])

    def misfit(self, outputs: Any, targets: Tensor, classes: int) -> str | None:
        """Targets must be sequences of two tokens at least."""
        if targets.dim() != 2 or targets.shape[1] < 2:
            return f"next_token needs targets (samples, positions), the tokens; these have shape {tuple(targets.shape)}"
        return super().misfit(outputs, targets, classes)
