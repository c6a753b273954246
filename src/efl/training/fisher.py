"""The Fisher diagonal u = mean over samples of (∂ log p(y|x) / ∂w)², exactly, for a cohort.

For linear layers no per-sample gradient is ever formed: with δ the derivative by a layer's output and x its input, the
squares sum to (δ²)ᵀ(x²). Where a layer meets several positions of a sample, as convolutions do, a sample's gradient is
a product of two small matrices. The third estimator, ``running``, needs no pass of its own: see
`efl.training.observers`.
"""

from typing import Literal

import torch
from torch import Tensor

from efl.training.backends.rows import Rows


def exact_fisher(
    rows: Rows,
    x: Tensor,
    y: Tensor,
    weights: Tensor,
    labels: Literal["data", "model"] = "data",
    seeds: list[int] | None = None,
) -> Tensor:
    """U (C, n) at ``rows.W`` from samples x (C, S, …), weighted (C, S); weights of a row sum to one.

    ``labels="data"`` is the empirical Fisher, ``labels="model"`` the true one, with labels drawn from the
    model's own outputs, one seed per row.
    """
    x, y, weights = (tensor.to(rows.model.device) for tensor in (x, y, weights))
    if labels == "model":
        y = _drawn_labels(rows, x, weights, seeds or [0] * len(x))
    return rows.squared_gradients(x, y, weights).cpu()


def _drawn_labels(rows: Rows, x: Tensor, weights: Tensor, seeds: list[int]) -> Tensor:
    with torch.no_grad():
        outputs = rows.outputs(x, weights)
    draws = [torch.rand(outputs.shape[1:-1], generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    uniform = torch.stack(draws).to(outputs.device)
    below = outputs.softmax(-1).cumsum(-1) < uniform.unsqueeze(-1)
    return below.sum(-1).clamp_(max=outputs.shape[-1] - 1)
