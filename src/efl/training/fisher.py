"""The Fisher diagonal u = mean over samples of (∂ log p(y|x) / ∂w)², exactly, for a cohort.

For linear layers no per-sample gradient is ever formed: with δ the derivative by a layer's output and x its input, the
squares sum to (δ²)ᵀ(x²). Where a layer meets several positions of a sample, as convolutions do
(`efl.training.fisher_layers`), a sample's gradient is a product of two small matrices. Other networks go through
`torch.func`, or sample by sample. The third estimator, ``running``, needs no pass of its own: see
`efl.algorithms.components.elastic`.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from efl.models.flat import FlatModel
from efl.models.layout import flatten
from efl.training.backends.rows import Rows, sample_losses
from efl.training.fisher_layers import layer_by_layer

FLOATS_AT_ONCE = 2**25  # of per-sample gradients


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
    x, y, weights = (tensor.to(rows.model.device) for tensor in (x, y, weights))
    if labels == "model":
        y = _drawn_labels(rows, x, weights, seeds or [0] * len(x))
    return (_of_chain if rows.batched else _of_rows)(rows, x, y, weights).cpu()


def _drawn_labels(rows: Rows, x: Tensor, weights: Tensor, seeds: list[int]) -> Tensor:
    with torch.no_grad():
        if rows.batched and rows.model.chain is not None:
            outputs = torch.zeros(*x.shape[:2], rows.model.chain.outputs, device=x.device)
            for alike, filled in _alike(weights):
                passed = rows.model.chain.forward(rows.some(alike), x[alike, :filled])
                outputs[alike, :filled] = passed[-1].mT
        else:
            outputs = torch.stack([rows.use(row, training=False)(x[row]) for row in range(len(x))])
    draws = [torch.rand(outputs.shape[1:-1], generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    uniform = torch.stack(draws).to(outputs.device)
    below = outputs.softmax(-1).cumsum(-1) < uniform.unsqueeze(-1)
    return below.sum(-1).clamp_(max=outputs.shape[-1] - 1)


def _of_chain(rows: Rows, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    if rows.compiled is not None:
        return rows.compiled.fisher(rows.W[: len(x)], x, y, weights)
    result = torch.zeros_like(rows.W[: len(x)])
    for alike, filled in _alike(weights):
        parameters, share = rows.some(alike), weights[alike, :filled].unsqueeze(-1)
        _, layers = rows.through_chain(parameters, x[alike, :filled], y[alike, :filled], share=1.0)
        squares: dict[str | None, Tensor] = {}
        for layer in layers:
            weighted = layer.delta.square() * share
            squares[layer.weight] = torch.bmm(weighted.mT, layer.inputs.square())
            squares[layer.bias] = weighted.sum(1)
        result[alike] = torch.cat([squares[spec.name].reshape(len(alike), -1) for spec in rows.model.layout], dim=1)
    return result


def _alike(weights: Tensor) -> Iterator[tuple[Tensor, int]]:
    """The rows with as many samples, without those that only fill rows up: sums are rounded in another order with them.

    So what comes out for a row does not depend on its company.
    """
    counts = (weights > 0).sum(1)
    for filled in sorted(set(counts.tolist())):
        yield (counts == filled).nonzero().squeeze(1), filled


def _of_rows(rows: Rows, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    result = torch.zeros_like(rows.W[: len(x)])
    for row in range(len(x)):
        module = rows.use(row, training=False)
        for squares in (layer_by_layer, _at_once, _one_by_one):
            found = squares(rows.model, module, x[row], y[row], weights[row])
            if found is not None:
                result[row] = found
                break
    return result


def _at_once(model: FlatModel, module: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> Tensor | None:
    """Per-sample gradients by `torch.func`, some samples at a time; None where it cannot, or only very slowly."""
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):  # vmap takes 14 × as long there
        return None
    names = [spec.name for spec in model.layout]
    parameters = dict(zip(names, (p.detach() for p in model.parameters), strict=True))

    def loss_of_one(parameters: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(module, parameters, (sample.unsqueeze(0),))
        return sample_losses(outputs, label.unsqueeze(0)).sum()

    per_sample = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
    total = torch.zeros(model.n, device=model.device)
    at_once = max(1, min(32, FLOATS_AT_ONCE // model.n))
    for start in range(0, len(x), at_once):
        part = slice(start, start + at_once)
        try:
            grads = per_sample(parameters, x[part], y[part])
        except RuntimeError:  # such as layers that decide by values
            return None
        total += flatten(torch.tensordot(weights[part], grads[name].square(), dims=1) for name in names)
    return total


def _one_by_one(model: FlatModel, module: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """The same by ordinary differentiation, a pass for each sample."""
    total = torch.zeros(model.n, device=model.device)
    for sample, label, weight in zip(x, y, weights.tolist(), strict=True):
        if weight > 0:
            loss = sample_losses(module(sample.unsqueeze(0)), label.unsqueeze(0)).sum()
            grads = torch.autograd.grad(loss, model.parameters, allow_unused=True, materialize_grads=True)
            total.add_(flatten(grads).square_(), alpha=weight)
    return total
