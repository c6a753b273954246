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
    """Fisher sums U (n,) and the anchor c (n,)."""

    fisher: Tensor
    anchor: Tensor


class ElasticStep:
    """One local step on f_k plus the elastic term, for rows of models at once.

    ``implicit`` evaluates the pull where the step ends: w ← (w − ηg + ηλV) / (1 + ηλU), which is stable for every λ.
    ``explicit`` evaluates it where the step begins, as the paper does: w ← w − η(g + λ(U⊙w − V)); it is unstable
    once ηλU > 2 in any coordinate.
    """

    def __init__(self, field: ElasticField | None, eta: float, elasticity: float, kind: StepKind) -> None:
        self.field, self.eta, self.kind = field, eta, kind
        if field is not None:
            strength = field.fisher * (eta * elasticity)
            self.pull = strength / (1 + strength) if kind == "implicit" else strength  # 1 − ρ, or ηλU

    def __call__(self, w: Tensor, gradient: Tensor) -> None:
        """Move the rows ``w`` in place."""
        if self.field is None:
            w.sub_(gradient, alpha=self.eta)
        elif self.kind == "implicit":
            w.sub_(gradient, alpha=self.eta).lerp_(self.field.anchor, self.pull)  # ρ(w − ηg) + (1 − ρ)c
        else:
            w.lerp_(self.field.anchor, self.pull).sub_(gradient, alpha=self.eta)


def completion_scale(
    field: ElasticField | None, eta: float, elasticity: float, steps_done: Tensor, local_steps: int
) -> Tensor:
    """a_E / a_s per row and coordinate, (C, n), or (C, 1) without a field; a_s = Σ_{i=1..s} ρ^i, ρ = 1/(1 + ηλU).

    The displacement after s implicit steps under a constant gradient is proportional to a_s, so this is what
    turns the work of s steps into that of E; it is E/s where nothing pulls. Rows that are complete get exactly 1.
    """
    plain = (local_steps / steps_done.clamp(min=1)).to(torch.float32).unsqueeze(1)
    if field is None:
        return plain
    pulled = torch.nonzero(field.fisher).squeeze(1)
    rate = torch.log1p(field.fisher[pulled].double() * (eta * elasticity))  # −log ρ
    whole = torch.expm1(-local_steps * rate)
    scale = plain.repeat(1, len(field.fisher))
    for row, done in enumerate(steps_done.tolist()):
        if 0 < done < local_steps:
            scale[row, pulled] = (whole / torch.expm1(-done * rate)).float()
    return scale
