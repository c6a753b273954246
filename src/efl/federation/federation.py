"""A federation: one pool of samples, and for every client the indices of its training and test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from efl.errors import UserError
from efl.federation.partition import Indices, partition_samples, split_train_test
from efl.rng import Purpose, stream


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their data.

    ``x`` and ``y`` hold every sample once; client ``k`` trains on ``x[train[k]]`` and is tested on
    ``x[test[k]]``. Build one with :meth:`from_tensors`, :meth:`from_clients` or ``efl.load``.

    >>> f = Federation.from_tensors(torch.randn(80, 4), torch.arange(80) % 2, clients=4, partition="iid")
    >>> len(f), f.classes, int(f.sizes.sum())
    (4, 2, 64)
    """

    x: Tensor
    y: Tensor
    train: list[Indices]
    test: list[Indices]
    classes: int
    name: str = "custom"

    def __post_init__(self) -> None:
        _check_samples(self.x, self.y, self.classes)
        if not self.train:
            raise UserError("the federation has no clients")
        object.__setattr__(self, "train", [np.asarray(indices, dtype=np.int64) for indices in self.train])
        object.__setattr__(self, "test", [np.asarray(indices, dtype=np.int64) for indices in self.test])
        for client, (train, test) in enumerate(zip(self.train, self.test, strict=True)):
            if len(train) == 0 or len(test) == 0:
                raise UserError(
                    f"client {client} has {len(train)} training and {len(test)} test samples; "
                    "every client needs at least one of each: use fewer clients or another partition"
                )
            if min(train.min(), test.min()) < 0 or max(train.max(), test.max()) >= len(self.x):
                raise UserError(f"client {client} has sample indices outside 0 … {len(self.x) - 1}")

    @classmethod
    def from_tensors(
        cls,
        x: Tensor,
        y: Tensor,
        clients: int,
        partition: str = "iid",
        *,
        test_fraction: float = 0.2,
        seed: int = 0,
        owners: Sequence[int] | None = None,
        name: str = "custom",
    ) -> Federation:
        """Deal the samples ``x`` with labels ``y`` out to ``clients`` as ``partition`` says.

        ``owners`` names the client of every sample, for ``partition="natural"``.
        """
        x, y = torch.as_tensor(x), torch.as_tensor(y)
        if len(x) != len(y):
            raise UserError(f"{len(x)} samples but {len(y)} labels")
        if len(y) == 0:
            raise UserError("the data set has no samples")
        if y.dim() != 1:
            raise UserError(f"labels have shape {tuple(y.shape)}; they must be one number a sample")
        if y.is_floating_point():
            raise UserError("labels are real numbers; they must be whole numbers, 0 … classes-1")
        if int(y.min()) < 0:
            raise UserError(f"labels must lie in 0 … classes-1, found {int(y.min())}")
        labels = y.cpu().numpy().astype(np.int64)
        owner_array = None if owners is None else np.asarray(owners)
        rng = stream(seed, Purpose.PARTITION)
        parts = partition_samples(labels, clients, partition, rng, owner_array)
        train, test = split_train_test(labels, parts, test_fraction, rng)
        return cls(x, y.long(), train, test, int(labels.max()) + 1, name)

    @classmethod
    def from_clients(
        cls, data: Sequence[tuple[Tensor, Tensor]], *, test_fraction: float = 0.2, seed: int = 0, name: str = "custom"
    ) -> Federation:
        """One ``(x, y)`` pair per client, each split into training and test data."""
        if not data:
            raise UserError("the federation has no clients")
        data = [(torch.as_tensor(x), torch.as_tensor(y)) for x, y in data]
        for client, (x, y) in enumerate(data):
            if len(x) == 0 or len(x) != len(y):
                raise UserError(f"client {client} has {len(x)} samples and {len(y)} labels")
        owners = np.repeat(np.arange(len(data)), [len(y) for _, y in data])
        x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
        return cls.from_tensors(
            x, y, len(data), "natural", test_fraction=test_fraction, seed=seed, owners=list(owners), name=name
        )

    def __len__(self) -> int:
        return len(self.train)

    @cached_property
    def sizes(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Training samples per client, n_k."""
        return np.array([len(indices) for indices in self.train], dtype=np.int64)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])


def _check_samples(x: Tensor, y: Tensor, classes: int) -> None:
    if len(x) != len(y):
        raise UserError(f"{len(x)} samples but {len(y)} labels")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).flatten(1).any(1).sum()) if x.dim() > 1 else int((~torch.isfinite(x)).sum())
        raise UserError(f"the data have NaN or infinity in {bad} of {len(x)} samples; clean or drop them first")
    if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        raise UserError(f"labels must lie in 0 … {classes - 1}, found {int(y.min())} … {int(y.max())}")
