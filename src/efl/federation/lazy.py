"""Samples that are read from their owner's dataset when they are needed, for data that do not fit into memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efl.errors import UserError
from efl.federation import checks
from efl.federation.adapters import Items

CACHE_BYTES = 2**28  # of items read last that each process keeps


class LazyItems:
    """The items of several datasets in a row; each is checked as it is read, and those read last are kept.

    Args:
        datasets: Of ``(x, y)`` pairs, with a length.
        owners: What each dataset is called in messages.
        classes: How many classes there are, which labels are checked against.
    """

    def __init__(self, datasets: Sequence[Items], owners: Sequence[str], classes: int) -> None:
        self.datasets, self.owners, self.classes = datasets, owners, classes
        self.starts = np.cumsum([0, *map(len, datasets)])
        self._kept: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()
        self._like = tuple(_prepared(part) for part in datasets[0][0])
        self._most = max(1, CACHE_BYTES // sum(part.numel() * part.element_size() for part in self._like))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def half(self, which: int) -> LazyTensor:
        """The samples (0), or the labels (1)."""
        return LazyTensor(self, which, self._like[which])

    def read(self, position: int) -> tuple[Tensor, Tensor]:
        """An item, from its dataset if it was not read lately."""
        if position in self._kept:
            self._kept.move_to_end(position)
            return self._kept[position]
        which = int(np.searchsorted(self.starts, position, side="right")) - 1
        x, y = self._checked(which, position - int(self.starts[which]))
        self._kept[position] = x, y
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return x, y

    def _checked(self, which: int, number: int) -> tuple[Tensor, Tensor]:
        place = f"{self.owners[which]}, item {number}"
        x, y = (_prepared(part) for part in self.datasets[which][number])
        for found, like in zip((x, y), self._like, strict=True):
            if found.shape != like.shape or found.dtype != like.dtype:
                raise UserError(
                    f"{place} has shape {tuple(found.shape)} of {found.dtype}, the first item {tuple(like.shape)} "
                    f"of {like.dtype}; bring them to one shape and type"
                )
        try:
            checks.check_samples(x[None], y[None], self.classes)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        return x, y


class LazyTensor:
    """The samples or the labels of lazily read items, with as much of a tensor's interface as a federation needs."""

    def __init__(self, items: LazyItems, which: int, like: Tensor) -> None:
        self.items, self.which = items, which
        self.dtype, self.shape = like.dtype, torch.Size([len(items), *like.shape])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: Tensor) -> Tensor:
        return self.index_select(0, indices)

    def dim(self) -> int:
        """How many dimensions there are, that of the items among them."""
        return len(self.shape)

    def is_floating_point(self) -> bool:
        """Whether these are real numbers."""
        return self.dtype.is_floating_point

    def index_select(self, dim: int, indices: Tensor) -> Tensor:
        """The items of these numbers, stacked."""
        return torch.stack([self.items.read(position)[self.which] for position in indices.tolist()])


def known(values: Tensor | LazyTensor) -> Tensor:
    """What is known of samples or labels without reading all: of lazily read ones, the first of every dataset."""
    if isinstance(values, Tensor):
        return values
    return values.index_select(0, torch.from_numpy(values.items.starts[:-1]))


def _prepared(value: Any) -> Tensor:
    tensor = torch.as_tensor(value)
    return tensor.float() if tensor.dtype == torch.float64 else tensor
