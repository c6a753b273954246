"""What goes into a network and comes out of it: one tensor, or several by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from efl.errors import UserError

LOGITS = ("logits", "prediction_logits", "predictions", "output", "last_hidden_state")  # the first of these is taken


def answer(module: nn.Module, x: Any) -> Any:
    """What a network answers to a batch; the tensors of a dictionary are passed by name."""
    return module(**x) if isinstance(x, Mapping) else module(x)


def tensor_of(output: Any) -> Tensor:
    """The tensor that a loss takes: the output itself, the first of a tuple, or the logits of a `ModelOutput`.

    Raises:
        UserError: If there is no such tensor.

    >>> import torch
    >>> tensor_of((torch.ones(2), None)).tolist(), tensor_of({"logits": torch.zeros(1)}).tolist()
    ([1.0, 1.0], [0.0])
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        named: Tensor | None = next((output[name] for name in LOGITS if isinstance(output.get(name), Tensor)), None)
        if named is not None:
            return named
        found = f"a dictionary with {', '.join(map(str, output)) or 'nothing'}"
    elif isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    else:
        found = f"a {type(output).__name__}"
    raise UserError(f"the model returns {found}; return a tensor, a tuple that begins with one, or one named logits")
