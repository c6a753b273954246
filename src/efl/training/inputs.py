"""What a network takes of some samples: a tensor, or several by name, whose first dimensions are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def each(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """The same with ``function`` applied to every tensor."""
    return {name: function(tensor) for name, tensor in x.items()} if isinstance(x, Mapping) else function(x)


def in_rows(x: Any) -> Iterator[Any]:
    """One after the other along the first dimension.

    >>> import torch
    >>> [row["a"].tolist() for row in in_rows({"a": torch.tensor([[1], [2]])})]
    [[1], [2]]
    """
    if not isinstance(x, Mapping):
        return iter(x.unbind())
    return (dict(zip(x, row, strict=True)) for row in zip(*(tensor.unbind() for tensor in x.values()), strict=True))
