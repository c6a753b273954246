"""The Fisher diagonal u = mean over samples of (∂ log p(y|x) / ∂w)², exactly, for a cohort.

For chains of linear layers no per-sample gradient is ever formed: with δ the derivative by a layer's output
and x its input, the squares sum to (δ²)ᵀ(x²). Other networks go through `torch.func`, sample by sample.
The third estimator, ``running``, needs no pass of its own: see `efl.algorithms.parts.elastic`.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from efl.errors import UserError
from efl.models.chain import qualified
from efl.models.flat import Rows, sample_losses

SAMPLES_AT_ONCE = 32


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
    model's own answers, one seed a row.
    """
    if labels == "model":
        y = _drawn_labels(rows, x, seeds or [0] * len(x))
    return _of_chain(rows, x, y, weights) if rows.batched else _of_rows(rows, x, y, weights)


def _drawn_labels(rows: Rows, x: Tensor, seeds: list[int]) -> Tensor:
    with torch.no_grad():
        if rows.batched and rows.model.chain is not None:
            outputs, _ = rows.model.chain.forward(rows.leaves(len(x)), x)
        else:
            outputs = torch.stack([rows.use(row, training=False)(x[row]) for row in range(len(x))])
    uniform = torch.stack([torch.rand(x.shape[1], generator=torch.Generator().manual_seed(seed)) for seed in seeds]).to(
        outputs.device
    )
    below = outputs.softmax(-1).cumsum(-1) < uniform.unsqueeze(-1)
    return below.sum(-1).clamp_(max=outputs.shape[-1] - 1)


def _of_chain(rows: Rows, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    assert rows.model.chain is not None
    count = len(x)
    outputs, linear = rows.model.chain.forward(rows.leaves(count), x)
    losses = sample_losses(outputs.flatten(0, 1), y.flatten())
    deltas = torch.autograd.grad(losses.sum(), [out for _, _, out in linear])
    squares: dict[str, Tensor] = {}
    for (name, inputs, _), delta in zip(linear, deltas, strict=True):
        weighted = delta.square() * weights.unsqueeze(-1)
        squares[qualified(name, "weight")] = torch.bmm(weighted.transpose(1, 2), inputs.detach().square())
        squares[qualified(name, "bias")] = weighted.sum(1)
    return torch.cat([squares[spec.name].reshape(count, -1) for spec in rows.model.layout], dim=1)


def _of_rows(rows: Rows, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    module = rows.use(0, training=False)
    names = [spec.name for spec in rows.model.layout]

    def loss_of_one(parameters: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(module, parameters, (sample.unsqueeze(0),))
        return sample_losses(outputs, label.unsqueeze(0)).sum()

    per_sample = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
    result = torch.zeros_like(rows.W[: len(x)])
    for row in range(len(x)):
        rows.use(row, training=False)
        parameters = dict(zip(names, (p.detach() for p in rows.model.parameters), strict=True))
        for start in range(0, x.shape[1], SAMPLES_AT_ONCE):
            part = slice(start, start + SAMPLES_AT_ONCE)
            try:
                grads = per_sample(parameters, x[row, part], y[row, part])
            except RuntimeError as error:
                raise UserError(
                    f"this network has no per-sample gradients ({str(error).splitlines()[0]}); use fisher='running'"
                ) from error
            weight = weights[row, part]
            pieces = [torch.tensordot(weight, grads[name].square(), dims=1).reshape(-1) for name in names]
            result[row] += torch.cat(pieces)
    return result
