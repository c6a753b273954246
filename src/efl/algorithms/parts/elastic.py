"""The elastic term λ/2 Σ_i (w − w_i)ᵀ diag(I_i) (w − w_i) of Eq. 2, up to a constant λ/2 Σ U (w − c)².

U = Σ u^i, V = Σ u^i ⊙ w_i (Eq. 3) and c = V/U, the anchor. A field known at some coordinates only pulls there
only, and costs only those columns of W.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

StepKind = Literal["implicit", "explicit"]


@dataclass(frozen=True, eq=False)
class ElasticField:
    """Fisher sums U and the anchor c at the columns ``index`` (None: all columns)."""

    index: Tensor | None
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
            w.sub_(gradient, alpha=self.eta)
            self._pull_to_anchor(w, w, self.field)
        else:
            before = w.clone()
            w.sub_(gradient, alpha=self.eta)
            self._pull_to_anchor(w, before, self.field)

    def _pull_to_anchor(self, w: Tensor, seen: Tensor, field: ElasticField) -> None:
        """W ← w + pull ⊙ (c − seen); with pull = 1 − ρ and seen = w this is the implicit step's ρw + (1 − ρ)c."""
        if field.index is None:
            w.add_(self.pull * (field.anchor - seen))
        else:
            columns = seen.index_select(1, field.index)
            w.index_add_(1, field.index, self.pull * (field.anchor - columns))


def completion_scale(
    field: ElasticField | None, eta: float, elasticity: float, steps_done: Tensor, local_steps: int, n: int
) -> Tensor:
    """a_E / a_s per row and coordinate, (C, n), or (C, 1) without a field; a_s = Σ_{i=1..s} ρ^i, ρ = 1/(1 + ηλU).

    The displacement after s implicit steps under a constant gradient is proportional to a_s, so this is what
    turns the work of s steps into that of E; it is E/s where nothing pulls. Rows that are complete get exactly 1.
    """
    done = steps_done.clamp(min=1).to(torch.float64).unsqueeze(1)
    plain = local_steps / done
    if field is None:
        return plain.to(torch.float32)
    decay = torch.log1p(field.fisher.to(torch.float64) * (eta * elasticity)).unsqueeze(0)  # −log ρ
    ratio = torch.expm1(-local_steps * decay) / torch.expm1(-done * decay)
    ratio = torch.where(decay > 0, ratio, plain).to(torch.float32)
    if field.index is None:
        return ratio
    scale = plain.to(torch.float32).expand(-1, n).clone()
    return scale.index_copy_(1, field.index, ratio)
