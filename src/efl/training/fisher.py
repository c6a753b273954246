"""The Fisher diagonal u = mean over samples of (∂ log p(y|x) / ∂w)², exactly, for a cohort.

For linear layers no per-sample gradient is ever formed: with δ the derivative by a layer's output and x its input, the
squares sum to (δ²)ᵀ(x²). Where a layer meets several positions of a sample, as convolutions do, a sample's gradient is
a product of two small matrices. The third estimator, ``running``, needs no pass of its own: see
`efl.training.observers`.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from efl.errors import UserError
from efl.training.backends.rows import Rows
from efl.training.inputs import each

TINY = 1e-30


def exact_fisher(
    rows: Rows,
    x: Any,
    y: Tensor,
    weights: Tensor,
    labels: Literal["data", "model"] = "data",
    seeds: list[int] | None = None,
) -> Tensor:
    """U (C, n) at ``rows.W`` from samples x (C, S, …), weighted (C, S); weights of a row sum to one.

    ``labels="data"`` is the empirical Fisher, ``labels="model"`` the true one, with labels drawn from the
    model's own outputs, one seed per row. Where the task weighs samples, their squares count by those weights, too.
    """
    device, seeds = rows.model.device, seeds or [0] * len(y)
    x, y, weights = each(lambda tensor: tensor.to(device), x), y.to(device), weights.to(device)
    if labels == "model":
        y = _drawn_labels(rows, x, y, weights, seeds)
    if (counts := [rows.task.sample_weights(row) for row in y])[0] is not None:
        counted = weights * torch.stack([row for row in counts if row is not None])
        shares = counted * (weights.sum(1) / counted.sum(1).clamp(min=TINY)).unsqueeze(1)
        weights = torch.where(weights > 0, shares.clamp(min=TINY), 0.0)  # 0 is for rows that are filled up
    return rows.squared_gradients(x, y, weights).cpu()


def _drawn_labels(rows: Rows, x: Any, y: Tensor, weights: Tensor, seeds: list[int]) -> Tensor:
    if not rows.task.has_likelihood:
        raise UserError("fisher = 'true' draws targets from the model; a loss of your own has no likelihood to draw by")
    with torch.no_grad():
        outputs = rows.outputs(x, weights)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    drawn = [rows.task.draw(*given) for given in zip(outputs, y, generators, strict=True)]
    return torch.stack(drawn)
