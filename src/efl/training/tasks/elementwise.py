"""Losses that are a mean over the numbers of a target: regression and labels that may each be on or off."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from efl.settings import Positive
from efl.training.tasks.base import Pairs, Task
from efl.training.tasks.registry import TASKS


class Elementwise(Task):
    """Targets (B,) or (B, …) and outputs of the same shape; for targets (B,) outputs may be (B, 1)."""

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over a sample's numbers."""
        outputs, targets = aligned(outputs, targets)
        return self.losses(outputs, targets).reshape(len(targets), -1).mean(1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every number."""
        raise NotImplementedError

    def draw(self, outputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Numbers from p ∝ exp(−loss) around the model's."""
        outputs, targets = aligned(outputs, targets)
        return self.drawn(outputs, torch.rand(outputs.shape, generator=generator, dtype=torch.float64)).to(outputs)

    def drawn(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """The same from uniform random numbers."""
        raise NotImplementedError

    def bad_target(self, y: Tensor, classes: int) -> tuple[int, str] | None:
        """NaN and infinity."""
        wrong = ~torch.isfinite(y.float())
        return (first(wrong), "NaN or infinity among its targets; drop or fill them") if bool(wrong.any()) else None

    def misfit(self, outputs: Tensor, targets: Tensor, classes: int) -> str | None:
        """Outputs must be as many as targets."""
        if outputs.shape == targets.shape or outputs.shape == (*targets.shape, 1):
            return None
        found, needed = tuple(outputs.shape[1:]), tuple(targets.shape[1:])
        if targets.shape == (*outputs.shape, 1):
            return f"the model gives one number per sample, the targets have shape {needed}; pass y.squeeze(-1)"
        remedy = "one number per sample; let its last layer have 1 output" if not needed else f"{needed}"
        remedy += f"; let its last layer have {needed[0]} outputs" if len(needed) == 1 else ""
        return f"the model gives outputs of shape {found}; the targets need {remedy}"


@TASKS.register("mse")
class Regression(Elementwise):
    """Squared error (f − y)²: a normal distribution of variance ½ around the output."""

    default_metrics: ClassVar[tuple[str, ...]] = ("mse", "mae")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(f − y)²."""
        return (outputs - targets).square()

    def drawn(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """F + z/√2."""
        normal: Tensor = torch.special.ndtri(uniform)
        return outputs + normal.to(outputs) * math.sqrt(0.5)


@TASKS.register("mae")
class AbsoluteError(Elementwise):
    """Absolute error |f − y|: a Laplace distribution of scale 1 around the output."""

    default_metrics: ClassVar[tuple[str, ...]] = ("mae", "mse")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """|f − y|."""
        return (outputs - targets).abs()

    def drawn(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """By the inverse of its distribution function."""
        centred = uniform - 0.5
        return outputs - (centred.sign() * torch.log1p(-2 * centred.abs())).to(outputs)


@TASKS.register("huber")
class Huber(Elementwise):
    """½(f − y)² up to ``delta``, then δ(|f − y| − ½δ): a normal distribution of variance 1 with exponential tails."""

    default_metrics: ClassVar[tuple[str, ...]] = ("mae", "mse")

    delta: Positive = 1.0

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """PyTorch's."""
        return F.huber_loss(outputs, targets, reduction="none", delta=self.delta)

    def drawn(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """By the inverse of its distribution function: a tail, the middle, the other tail."""
        delta, below = self.delta, 0.5 * math.erfc(self.delta / math.sqrt(2))  # Φ(−δ)
        tail, middle = math.exp(-0.5 * delta**2) / delta, math.sqrt(2 * math.pi) * (1 - 2 * below)
        mass = uniform * (2 * tail + middle)
        left = torch.log((mass.clamp(max=tail) / tail).clamp(min=1e-300)) / delta - delta
        right = delta - torch.log(((2 * tail + middle - mass).clamp(max=tail) / tail).clamp(min=1e-300)) / delta
        centre = torch.special.ndtri(below + (mass - tail).clamp(0, middle) / math.sqrt(2 * math.pi))
        residual = torch.where(mass < tail, left, torch.where(mass > tail + middle, right, centre))
        return outputs + residual.to(outputs)


@TASKS.register("bce")
class MultiLabel(Elementwise):
    """Binary cross-entropy with logits: targets between 0 and 1, one per label."""

    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "f1")
    in_nats: ClassVar[bool] = True

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of every label."""
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")

    def drawn(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """On with the model's probability."""
        return (uniform.to(outputs.device) < outputs.double().sigmoid()).to(outputs)

    def correct(self, outputs: Tensor, targets: Tensor) -> Pairs:
        """The share of labels that are predicted."""
        outputs, targets = aligned(outputs, targets)
        right = ((outputs > 0) == (targets > 0.5)).double().reshape(len(targets), -1).mean(1)
        return right, torch.ones_like(right)

    def bad_target(self, y: Tensor, classes: int) -> tuple[int, str] | None:
        """Anything outside 0 … 1."""
        wrong = ~((y >= 0) & (y <= 1))
        if not bool(wrong.any()):
            return None
        return first(wrong), "targets outside 0 … 1; bce needs a 0 or 1 for every label, in a row per sample"


def aligned(outputs: Tensor, targets: Tensor) -> Pairs:
    """Both in one shape, as real numbers."""
    squeezed = outputs.squeeze(-1) if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1 else outputs
    return squeezed, targets.to(squeezed.dtype)


def first(wrong: Tensor) -> int:
    """The first sample with something wrong."""
    return int(wrong.reshape(len(wrong), -1).any(1).int().argmax())
