"""Checks before a run: whether the model fits the data."""

from __future__ import annotations

import torch
from torch import Tensor

from efl.errors import UserError, first_line
from efl.federation import Federation
from efl.models import FlatModel
from efl.rng import seeded_torch
from efl.training.backends.selection import Eager


def check_fit(model: FlatModel, federation: Federation, batch_size: int) -> None:
    """Raise `UserError` if the model cannot be trained on the data."""
    x, y = (part[None].to(model.device) for part in federation.batch(torch.arange(batch_size) % len(federation.x)))
    answer_shape = (*y.shape[1:], federation.classes)
    try:
        outputs = model.outputs(model.w, model.buffers, x[0])
        with seeded_torch(0):
            if _fits(outputs, answer_shape):
                Eager(model).rows(model.w, 1).gradient(1, x, y)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = first_line(error)
        shape = (batch_size, *federation.input_shape)
        raise UserError(f"the model cannot be trained on batches of shape {shape}: {reason}") from None
    if not _fits(outputs, answer_shape):
        raise UserError(
            f"the model gives outputs of shape {tuple(outputs.shape[1:])}; "
            f"the data, with {federation.classes} classes, need {answer_shape[1:]}"
        )


def _fits(outputs: Tensor, expected: tuple[int, ...]) -> bool:
    """Whether the outputs have a score for every class, at every position if there are several."""
    return outputs.dim() == len(expected) and outputs.shape[:-1] == expected[:-1] and outputs.shape[-1] >= expected[-1]
