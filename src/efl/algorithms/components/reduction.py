"""Weighted averages of what clients sent, in model space where they sent models, exactly.

Whole models are averaged as such: Σ p_k w_k (+ the server's own w for weight that is missing), so a single
client's model comes back bit for bit. Increments are summed as increments, so nothing is lost to rounding
against w.
"""

from collections.abc import Sequence
from math import fsum

import torch
from torch import Tensor

from efl.errors import WireError
from efl.wire import Dense, Payload

ROUNDING = 1e-9


def averaged_model(w: Tensor, uploads: Sequence[Payload], weights: Sequence[float]) -> Tensor:
    """W + Σ weight_k · (model_k − w)."""
    if not all(isinstance(upload, Dense) for upload in uploads):
        return w + averaged_increment(w, uploads, weights)
    models = [torch.from_numpy(upload.onto(w.numpy())) for upload in uploads if isinstance(upload, Dense)]
    average = models[0] * weights[0]
    for model, weight in zip(models[1:], weights[1:], strict=True):
        average.add_(model, alpha=weight)
    missing = 1.0 - fsum(weights)
    return average.add_(w, alpha=missing) if abs(missing) > ROUNDING else average


def averaged_increment(w: Tensor, uploads: Sequence[Payload], weights: Sequence[float]) -> Tensor:
    """Σ weight_k · (model_k − w)."""
    increment = torch.zeros_like(w)
    for upload, weight in zip(uploads, weights, strict=True):
        upload.add_to(increment.numpy(), weight, w.numpy())
    return increment


def weighted_sum(payloads: Sequence[Payload], weights: Sequence[float]) -> Tensor:
    """Σ weight_k · vector_k of vectors that are neither models nor changes of one."""
    return torch.stack([vector(payload) * weight for payload, weight in zip(payloads, weights, strict=True)]).sum(0)


def vector(payload: Payload) -> Tensor:
    """The vector that a dense payload is."""
    if not isinstance(payload, Dense):
        raise WireError(f"expected a dense vector, got {type(payload).__name__}")
    return torch.from_numpy(payload.values)
