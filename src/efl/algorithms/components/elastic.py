"""The elastic term λ/2 Σ_i (w − w_i)ᵀ diag(I_i) (w − w_i) of Eq. 2, up to a constant λ/2 Σ U (w − c)².

U = Σ u^i, V = Σ u^i ⊙ w_i (Eq. 3) and c = V/U, the anchor. Where U is zero nothing pulls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from efl.training.optimisers import PLAIN_SGD, Optimiser
from efl.training.step import Step

StepKind = Literal["implicit", "explicit"]


@dataclass(frozen=True, eq=False)
class ElasticField:
    """Fisher sums U and the anchor c, at the coordinates ``index`` of n (None: at all of them)."""

    index: Tensor | None
    fisher: Tensor
    anchor: Tensor


def elastic_step(field: ElasticField | None, eta: float, elasticity: float, kind: StepKind) -> Step:
    """The local step on f_k plus the elastic term.

    ``implicit`` evaluates the pull where the step ends: w ← (w − ηg + ηλV) / (1 + ηλU), which is stable for every λ.
    ``explicit`` evaluates it where the step begins, as the paper does: w ← w − η(g + λ(U⊙w − V)); it is unstable
    once ηλU > 2 in any coordinate.
    """
    if field is None:
        return Step(explicit=kind == "explicit")
    strength = field.fisher * (eta * elasticity)  # ηλU
    if kind == "explicit":
        return Step(keep=1 - strength, shift=strength * field.anchor, index=field.index, explicit=True)
    keep = 1 / (1 + strength)
    return Step(keep=keep, shift=strength * field.anchor * keep, index=field.index)


def steps_under_pull(
    field: ElasticField,
    eta: float,
    elasticity: float,
    steps_done: Tensor,
    kind: StepKind = "implicit",
    optimiser: Optimiser = PLAIN_SGD,
) -> Tensor:
    """a_s (C, k) at the field's coordinates: how many steps without a pull a constant gradient would need instead.

    a_s = (1 − ρ^s)/(ηλU) with ρ = 1/(1 + ηλU), or 1 − ηλU for explicit steps; s where nothing pulls. With momentum
    step t counts as often as the gradient is in its direction.
    """
    strength = field.fisher.double() * (eta * elasticity)
    if gathers(optimiser):
        worth = _gathered(strength, int(steps_done.max()), kind, optimiser)
        return torch.stack([worth[done] for done in steps_done.tolist()]).float()
    rate = torch.log1p(strength) if kind == "implicit" else -torch.log1p(-strength.clamp(max=1 - 1e-9))
    every = steps_done.tolist()
    # One after the other: within a matrix, the last bits would depend on who works beside whom.
    progress = {
        done: torch.where(strength > 0, -torch.expm1(-done * rate) / strength, float(done)).float()
        for done in set(every)
    }
    return torch.stack([progress[done] for done in every])


def completion_scale(
    field: ElasticField | None,
    eta: float,
    elasticity: float,
    steps_done: Tensor,
    local_steps: int,
    n: int,
    kind: StepKind = "implicit",
    optimiser: Optimiser = PLAIN_SGD,
) -> Tensor:
    """a_E / a_s per row and coordinate, (C, n), or (C, 1) without a field; a_s = Σ_{i=1..s} ρ^i, ρ = 1/(1 + ηλU).

    The displacement after s implicit steps under a constant gradient is proportional to a_s, so this is what
    turns the work of s steps into that of E; it is E/s where nothing pulls. Rows that are complete get exactly 1.
    For explicit steps ρ is 1 − ηλU; where that is not positive the steps oscillate, and E/s must do. With momentum a_s
    is what the gradient's part of the displacement is proportional to; the pull's part, which momentum does not gather,
    is scaled alike. Adam's steps are equally long under a constant gradient, so they count as plain ones.
    """
    plain = optimiser.completion(steps_done, local_steps).to(torch.float32).unsqueeze(1)
    if field is None:
        return plain
    index = torch.arange(n) if field.index is None else field.index
    strength = field.fisher.double() * (eta * elasticity)
    pulled = (strength > 0) & (strength < (1 if kind == "explicit" else torch.inf))
    index, strength = index[pulled], strength[pulled]
    partial = {done for done in steps_done.tolist() if 0 < done < local_steps}
    if gathers(optimiser):
        gathered = _gathered(strength, local_steps, kind, optimiser)
        ratios = {done: gathered[local_steps] / gathered[done] for done in partial}
    else:
        rate = torch.log1p(strength) if kind == "implicit" else -torch.log1p(-strength)  # −log ρ
        whole = torch.expm1(-local_steps * rate)
        ratios = {done: whole / torch.expm1(-done * rate) for done in partial}
    scale = plain.repeat(1, n)
    for row, done in enumerate(steps_done.tolist()):
        if done in ratios:
            scale[row, index] = ratios[done].float()
    return scale


def gathers(optimiser: Optimiser) -> bool:
    """Whether later steps are longer than the first, as those with momentum are."""
    return optimiser.coefficient(2) != optimiser.coefficient(1)


def _gathered(strength: Tensor, steps: int, kind: StepKind, optimiser: Optimiser) -> list[Tensor]:
    """a_0 … a_steps (k,) under a pull: a_t = ρ(a_{t−1} + c_t), for explicit steps ρ a_{t−1} + c_t."""
    keep = 1 / (1 + strength) if kind == "implicit" else 1 - strength
    found = [torch.zeros_like(strength)]
    for step in range(1, steps + 1):
        length = optimiser.coefficient(step)
        found.append(keep * (found[-1] + length) if kind == "implicit" else keep * found[-1] + length)
    return found
