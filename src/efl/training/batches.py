"""Which samples make a mini-batch, and fetching them for several steps at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.federation import Federation
from efl.training.augmentation import Augmentation
from efl.training.backends.rows import Rows
from efl.training.inputs import each, in_rows

FLOATS_AHEAD = 2**18  # of samples that are fetched at once


class BatchPrefetcher:
    """The mini-batches of some clients, from sample indices (steps, C, B).

    Inputs and labels are fetched for several steps at once, labels for more of them, unless they are read together.
    """

    def __init__(self, pool: Federation, indices: Tensor, rows: Rows, augment: Augmentation | None = None) -> None:
        device, samples = rows.model.device, indices[0].numel()

        def to_device(tensor: Tensor) -> Tensor:
            return tensor.to(device)

        inputs = samples * math.prod(pool.x.shape[1:])
        self._x = _BlockCache(lambda some: each(to_device, pool.inputs_of(some)), indices, inputs)
        labels = samples * math.prod(pool.y.shape[1:]) * (pool.classes if rows.batched and rows.task.plain else 1)
        labels = labels if isinstance(pool.x, Tensor) else max(labels, inputs)
        self._y = _BlockCache(lambda some: rows.targets(pool.labels_of(some).to(device)), indices, labels)
        self._augment = augment

    def __call__(self, step: int, active: int) -> tuple[Any, Tensor]:
        """Samples (active, B, …) and labels of this step, for the first ``active`` clients."""
        x, y = self._x(step), self._y(step)
        x, y = (x, y) if active == len(y) else (each(lambda tensor: tensor[:active], x), y[:active])
        return (x, y) if self._augment is None else (self._augment(x, step), y)


class _BlockCache:
    """Something of every step, ``numbers`` in each, fetched for several steps at once."""

    def __init__(self, fetch: Callable[[Tensor], Any], indices: Tensor, numbers: int) -> None:
        self.fetch, self.indices = fetch, indices
        self.at_once = max(1, FLOATS_AHEAD // max(1, numbers))
        self._first = 0
        self._block: tuple[Any, ...] = ()

    def __call__(self, step: int) -> Any:
        if not self._first <= step < self._first + len(self._block):
            self._first = step
            self._block = tuple(in_rows(self.fetch(self.indices[step : step + self.at_once])))
        return self._block[step - self._first]


def batch_indices(
    samples: NDArray[np.int64], steps: int, batch_size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(steps, batch_size): one random permutation of the samples after another, cut into full batches."""
    needed = steps * batch_size
    passes = -(-needed // len(samples))
    order = rng.permuted(np.tile(samples, (passes, 1)) if passes > 1 else samples[None], axis=1)
    return order.reshape(-1)[:needed].reshape(steps, batch_size)


def fisher_samples(
    pools: Sequence[NDArray[np.int64]], limit: int, rngs: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """Up to ``limit`` samples of every client (C, S) and their weights; shorter rows are padded with weight 0."""
    width = min(limit, max(len(pool) for pool in pools))
    chosen = np.zeros((len(pools), width), dtype=np.int64)
    weights = np.zeros((len(pools), width), dtype=np.float32)
    for row, (pool, rng) in enumerate(zip(pools, rngs, strict=True)):
        taken = rng.permutation(pool)[:width]
        chosen[row] = np.resize(taken, width)
        weights[row, : len(taken)] = 1 / len(taken)
    return torch.from_numpy(chosen), torch.from_numpy(weights)
