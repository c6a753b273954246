"""Classification: cross-entropy with one label per sample, or one per position of a sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from efl.settings import Positive
from efl.training.tasks.base import Pairs, Task
from efl.training.tasks.registry import TASKS

PADDING = -100  # PyTorch's own ``ignore_index``


def cross_entropies(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of every sample, f_k before the mean; of a sequence, the mean over its positions."""
    if y.dim() == 1:
        return F.cross_entropy(outputs, y, reduction="none")
    return F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none").view(y.shape).flatten(1).mean(1)


def one_hot(y: Tensor) -> bool:
    """Whether every row has a single 1 and otherwise zeros."""
    return y.dim() == 2 and y.shape[1] > 1 and bool(((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all())


@TASKS.register("cross_entropy")
class Classification(Task):
    """Cross-entropy over outputs (B, classes), or (B, positions, classes) for sequences.

    Attributes:
        ignore_index: The label of padding, which does not count; by default -100, if there are such labels.
        class_weights: How much each class counts; by default all count alike.

    >>> Classification(ignore_index=0).loss(torch.zeros(2, 3, 4), torch.tensor([[1, 0, 0], [2, 3, 1]]))
    tensor(1.3863)
    """

    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    needs: ClassVar[str] = "cross_entropy needs classes 0, 1, …; for regression say loss='mse'"
    in_nats: ClassVar[bool] = True

    ignore_index: int | None = None
    class_weights: tuple[Positive, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether every label counts alike."""
        return type(self) is Classification and self._all_alike

    @property
    def _all_alike(self) -> bool:
        return self.ignore_index is None and not self.class_weights

    def fitted(self, y: Tensor) -> Self:
        """With -100 for padding, if there is some."""
        padded = self.ignore_index is None and not y.is_floating_point() and bool((y == PADDING).any())
        return replace(self, ignore_index=PADDING) if padded else self

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over a sample's positions that count, by their weights."""
        if self._all_alike:
            return cross_entropies(outputs, targets)
        weights = self._weights(targets)
        losses = F.cross_entropy(outputs.flatten(0, -2), self._valid(targets).flatten(), reduction="none")
        losses = losses.view(targets.shape) * weights
        return losses.reshape(len(targets), -1).sum(1) / weights.reshape(len(targets), -1).sum(1).clamp(min=1e-30)

    def sample_weights(self, targets: Tensor) -> Tensor | None:
        """The mean weight of a sample's positions, of which padding has none."""
        return None if self._all_alike else self._weights(targets).reshape(len(targets), -1).mean(1)

    def draw(self, outputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Classes by the model's probabilities; padding stays."""
        uniform = torch.rand(outputs.shape[:-1], generator=generator).to(outputs.device)
        below = outputs.softmax(-1).cumsum(-1) < uniform.unsqueeze(-1)
        drawn = below.sum(-1).clamp_(max=outputs.shape[-1] - 1)
        return drawn if self.ignore_index is None else torch.where(targets == self.ignore_index, targets, drawn)

    def correct(self, outputs: Tensor, targets: Tensor) -> Pairs:
        """The share of positions that are predicted, and the share that counts."""
        return self._shares(outputs.argmax(-1) == targets, targets)

    def among(self, best: int, outputs: Tensor, targets: Tensor) -> Pairs:
        """The same where a prediction is right if the label is among the ``best`` classes."""
        top = outputs.topk(min(best, outputs.shape[-1]), -1).indices
        return self._shares((top == targets.unsqueeze(-1)).any(-1), targets)

    def _shares(self, right: Tensor, targets: Tensor) -> Pairs:
        counts = torch.ones_like(right) if self.ignore_index is None else targets != self.ignore_index
        positions = ((right & counts).double(), counts.double())
        return positions[0].reshape(len(targets), -1).mean(1), positions[1].reshape(len(targets), -1).mean(1)

    def bad_target(self, y: Tensor, classes: int) -> tuple[int, str] | None:
        """Real numbers, and whole numbers that are no class."""
        if y.is_floating_point():
            return 0, "one-hot labels; pass y.argmax(1)" if one_hot(y) else f"real numbers, but {self.needs}"
        wrong = (y < 0) | (y >= classes)
        wrong &= y != (PADDING if self.ignore_index is None else self.ignore_index)
        if not bool(wrong.any()):
            return None
        sample = int(wrong.reshape(len(y), -1).any(1).int().argmax())
        value = int(y[sample][wrong[sample]][0] if y.dim() > 1 else y[sample])
        padding = f"{PADDING} for padding, or what ignore_index names"
        padding = padding if self.ignore_index is None else f"{self.ignore_index} for padding"
        return sample, f"label {value}; labels must lie in 0 … {classes - 1}, or be {padding}"

    def misfit(self, outputs: Tensor, targets: Tensor, classes: int) -> str | None:
        """There must be a score for every class, at every position if there are several."""
        needed = (*targets.shape, classes)
        fits = outputs.dim() == len(needed) and outputs.shape[:-1] == needed[:-1] and outputs.shape[-1] >= classes
        if not fits and targets.dim() == 2 and outputs.dim() == 2:
            if targets.shape[1] == 1:
                return f"the labels have shape {tuple(targets.shape[1:])}; for one class per sample pass y.squeeze(1)"
            if one_hot(targets):
                return "the labels are one-hot; pass y.argmax(1), or say loss='bce' where a sample may have several"
        if not fits:
            return (
                f"the model gives outputs of shape {tuple(outputs.shape[1:])}; "
                f"the data, with {classes} classes, need {needed[1:]}"
            )
        if self.class_weights and len(self.class_weights) != outputs.shape[-1]:
            return f"class_weights has {len(self.class_weights)} numbers, but the model has {outputs.shape[-1]} classes"
        return None

    def _valid(self, targets: Tensor) -> Tensor:
        return targets if self.ignore_index is None else targets.masked_fill(targets == self.ignore_index, 0)

    def _weights(self, targets: Tensor) -> Tensor:
        """How much every label counts, like ``targets``."""
        if self.class_weights:
            weights = torch.tensor(self.class_weights, device=targets.device)[self._valid(targets)]
        else:
            weights = torch.ones(targets.shape, device=targets.device)
        return weights if self.ignore_index is None else weights * (targets != self.ignore_index)
