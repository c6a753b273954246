"""Squared gradients of single samples, summed, for any network: Σ weight × (∂ loss / ∂w)².

Where all parameters belong to linear layers and convolutions they come from one pass over all samples
(`efl.training.fisher_layers`). Other networks go through `torch.func`, or sample by sample.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from efl.models import FlatModel
from efl.models.vectors import flatten
from efl.training.backends.rows import sample_losses
from efl.training.fisher_layers import layer_by_layer

FLOATS_AT_ONCE = 2**25  # of per-sample gradients


def squared_gradients(model: FlatModel, module: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum (n,) over samples x (S, …), by the quickest way that the network allows."""
    for way in (layer_by_layer, _at_once):
        found = way(model, module, x, y, weights)
        if found is not None:
            return found
    return _one_by_one(model, module, x, y, weights)


def _at_once(model: FlatModel, module: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> Tensor | None:
    """Per-sample gradients by `torch.func`, some samples at a time; None where it cannot, or only very slowly."""
    if any(isinstance(layer, nn.RNNBase) for layer in module.modules()):  # vmap takes 14 × as long there
        return None
    names = model.trained_layout.names
    parameters = dict(zip(names, (p.detach() for p in model.parameters), strict=True))

    def loss_of_one(parameters: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(module, parameters, (sample.unsqueeze(0),))
        return sample_losses(outputs, label.unsqueeze(0)).sum()

    per_sample = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
    total = torch.zeros(model.trained_layout.n, device=model.device)
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
    total = torch.zeros(model.trained_layout.n, device=model.device)
    for sample, label, weight in zip(x, y, weights.tolist(), strict=True):
        if weight > 0:
            loss = sample_losses(module(sample.unsqueeze(0)), label.unsqueeze(0)).sum()
            grads = torch.autograd.grad(loss, model.parameters, allow_unused=True, materialize_grads=True)
            total.add_(flatten(grads).square_(), alpha=weight)
    return total
