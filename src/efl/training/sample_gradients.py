"""Squared gradients of single samples, summed, for any network: Σ weight × (∂ loss / ∂w)².

Where all parameters belong to linear layers and convolutions they come from one pass over all samples
(`efl.training.fisher_layers`). Other networks go through `torch.func`, or sample by sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from efl.models import FlatModel
from efl.models.outputs import answer
from efl.models.vectors import flatten
from efl.training.fisher_layers import layer_by_layer
from efl.training.inputs import each, in_rows
from efl.training.tasks.base import Task

FLOATS_AT_ONCE = 2**25  # of per-sample gradients


def squared_gradients(model: FlatModel, module: nn.Module, task: Task, x: Any, y: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum (n,) over samples x (S, …), by the quickest way that the network allows."""
    for way in (layer_by_layer, _at_once):
        found = way(model, module, task, x, y, weights)
        if found is not None:
            return found
    return _one_by_one(model, module, task, x, y, weights)


def _at_once(model: FlatModel, module: nn.Module, task: Task, x: Any, y: Tensor, weights: Tensor) -> Tensor | None:
    """Per-sample gradients by `torch.func`, some samples at a time; None where it cannot, or only very slowly."""
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):  # vmap takes 14 × as long there
        return None
    names = model.trained_layout.names
    parameters = dict(zip(names, (p.detach() for p in model.parameters), strict=True))

    def loss_of_one(parameters: dict[str, Tensor], sample: Any, label: Tensor) -> Tensor:
        one = each(lambda tensor: tensor.unsqueeze(0), sample)
        given: tuple[Any, Any] = ((), one) if isinstance(one, Mapping) else ((one,), {})
        outputs = functional_call(module, parameters, *given)
        return task.sample_losses(task.read(outputs), label.unsqueeze(0)).sum()

    per_sample = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
    total = torch.zeros(model.trained_layout.n, device=model.device)
    at_once = max(1, min(32, FLOATS_AT_ONCE // model.n))
    for start in range(0, len(y), at_once):
        part = slice(start, start + at_once)
        try:
            grads = per_sample(parameters, each(lambda tensor: tensor[part], x), y[part])  # noqa: B023
        except Exception:  # such as layers that decide by values; what is really wrong shows one by one
            return None
        total += flatten(torch.tensordot(weights[part], grads[name].square(), dims=1) for name in names)
    return total


def _one_by_one(model: FlatModel, module: nn.Module, task: Task, x: Any, y: Tensor, weights: Tensor) -> Tensor:
    """The same by ordinary differentiation, a pass for each sample."""
    total = torch.zeros(model.trained_layout.n, device=model.device)
    for sample, label, weight in zip(in_rows(x), y, weights.tolist(), strict=True):
        if weight > 0:
            outputs = answer(module, each(lambda tensor: tensor.unsqueeze(0), sample))
            loss = task.sample_losses(task.read(outputs), label.unsqueeze(0)).sum()
            grads = torch.autograd.grad(loss, model.parameters, allow_unused=True, materialize_grads=True)
            total.add_(flatten(grads).square_(), alpha=weight)
    return total
