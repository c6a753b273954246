"""The elastic term λ/2 Σ_i (w − w_i)ᵀ diag(I_i) (w − w_i) of Eq. 2, up to a constant λ/2 Σ U (w − c)².

U = Σ u^i, V = Σ u^i ⊙ w_i (Eq. 3) and c = V/U, the anchor. Where U is zero nothing pulls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

StepKind = Literal["implicit", "explicit"]


@dataclass(frozen=True, eq=False)
class ElasticField:
    """Fisher sums U and the anchor c, at the coordinates ``index`` of n (None: at all of them)."""

    index: Tensor | None
    fisher: Tensor
    anchor: Tensor


@dataclass(frozen=True, eq=False)
class Pull:
    """Rows w become keep ⊙ w + shift, at the coordinates ``index`` (None: at all of them)."""

    index: Tensor | None
    keep: Tensor
    shift: Tensor

    def __call__(self, w: Tensor) -> None:
        """Move the rows in place."""
        if self.index is None:
            torch.addcmul(self.shift, w, self.keep, out=w)
        elif not w.is_cpu:
            w[:, self.index] = torch.addcmul(self.shift, w[:, self.index], self.keep)
        else:
            index, keep, shift = self.index.numpy(), self.keep.numpy(), self.shift.numpy()
            for row in w.numpy():  # so few entries that NumPy is done before PyTorch has begun
                pulled = row.take(index)
                pulled *= keep
                pulled += shift
                row[index] = pulled


class ElasticStep:
    """One local step on f_k plus the elastic term, for rows of models at once.

    ``implicit`` evaluates the pull where the step ends: w ← (w − ηg + ηλV) / (1 + ηλU), which is stable for every λ.
    ``explicit`` evaluates it where the step begins, as the paper does: w ← w − η(g + λ(U⊙w − V)); it is unstable
    once ηλU > 2 in any coordinate.
    """

    def __init__(
        self,
        field: ElasticField | None,
        eta: float,
        elasticity: float,
        kind: StepKind,
        device: torch.device | str = "cpu",
    ) -> None:
        self.eta, self.kind = eta, kind
        self.pull: Pull | None = None
        if field is not None:
            strength = field.fisher * (eta * elasticity)  # ηλU
            keep = 1 / (1 + strength) if kind == "implicit" else 1 - strength  # ρ, or 1 − ηλU
            shift = strength * field.anchor * (keep if kind == "implicit" else 1)  # ρηλV, or ηλV
            index = None if field.index is None else field.index.to(device)
            self.pull = Pull(index, keep.to(device), shift.to(device))

    def __call__(self, w: Tensor, gradient: Tensor) -> None:
        """Move the rows ``w`` in place."""
        if self.pull is not None and self.kind == "explicit":
            self.pull(w)
        w.sub_(gradient, alpha=self.eta)
        if self.pull is not None and self.kind == "implicit":
            self.pull(w)


def completion_scale(
    field: ElasticField | None,
    eta: float,
    elasticity: float,
    steps_done: Tensor,
    local_steps: int,
    n: int,
    kind: StepKind = "implicit",
) -> Tensor:
    """a_E / a_s per row and coordinate, (C, n), or (C, 1) without a field; a_s = Σ_{i=1..s} ρ^i, ρ = 1/(1 + ηλU).

    The displacement after s implicit steps under a constant gradient is proportional to a_s, so this is what
    turns the work of s steps into that of E; it is E/s where nothing pulls. Rows that are complete get exactly 1.
    For explicit steps ρ is 1 − ηλU; where that is not positive the steps oscillate, and E/s must do.
    """
    plain = (local_steps / steps_done.clamp(min=1)).to(torch.float32).unsqueeze(1)
    if field is None:
        return plain
    index = torch.arange(n) if field.index is None else field.index
    strength = field.fisher.double() * (eta * elasticity)
    pulled = (strength > 0) & (strength < (1 if kind == "explicit" else torch.inf))
    index, strength = index[pulled], strength[pulled]
    rate = torch.log1p(strength) if kind == "implicit" else -torch.log1p(-strength)  # −log ρ
    whole = torch.expm1(-local_steps * rate)
    scale = plain.repeat(1, n)
    for row, done in enumerate(steps_done.tolist()):
        if 0 < done < local_steps:
            scale[row, index] = (whole / torch.expm1(-done * rate)).float()
    return scale


class RunningFisher:
    """The Fisher diagonal as batch size × mean squared mini-batch gradient: no pass of its own.

    Every fourth step is to be added, the first among them; a pass over memory in each would cost more than it tells.
    """

    EVERY = 4

    def __init__(self, like: Tensor, batch_size: int) -> None:
        self.squares = torch.zeros_like(like)
        self.batch_size = batch_size

    def watches(self, step: int) -> bool:
        """Whether the squares of the gradient in this step are to be added to ``squares``."""
        return step % self.EVERY == 0

    def mean(self, steps: Tensor) -> Tensor:
        """The diagonal u (C, n), when each row has done so many ``steps`` (C,)."""
        seen = (steps.to(self.squares.device) + self.EVERY - 1) // self.EVERY
        return self.squares.mul_((self.batch_size / seen.clamp(min=1)).unsqueeze(1)).cpu()
