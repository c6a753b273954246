"""Local work made ready: the rows, mini-batches and samples of some clients in one round; and its evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from efl.federation import Federation
from efl.models import FlatModel
from efl.native.bindings import Source
from efl.rng import Purpose, stream, torch_seed
from efl.training.assignment import NO_ROUND, PERSONAL, Assignment
from efl.training.augmentation import Augmentation
from efl.training.backends.native import NativeBatches, NativeWork
from efl.training.backends.selection import Backend, Native
from efl.training.batches import BatchPrefetcher, batch_indices, fisher_samples
from efl.training.local_work import CohortData, FisherSamples, LocalWork, no_deadline
from efl.training.optimisers import PLAIN_SGD, Optimiser
from efl.training.round_settings import RoundSettings
from efl.training.tasks import METRICS, Metric, Objective
from efl.wire import Payload

SAMPLES_AT_ONCE = 250  # in an evaluation


@dataclass(frozen=True, eq=False)
class Trainer:
    """The network with its backend and task, the data, the seed, and how many clients run as one matrix.

    ``metrics`` are what evaluations find, ``optimiser`` is how clients step. Work ends early when there is no
    ``time_left``.
    """

    backend: Backend
    federation: Federation
    seed: int
    rows: int = 1
    time_left: Callable[[], bool] = no_deadline
    metrics: Mapping[str, Metric] = field(default_factory=lambda: {"accuracy": METRICS.get("accuracy")})
    optimiser: Optimiser = PLAIN_SGD

    @property
    def model(self) -> FlatModel:
        """The network."""
        return self.backend.model

    @cached_property
    def objective(self) -> Objective:
        """What clients minimise, and what is measured."""
        return Objective(self.backend.task, self.metrics)

    @cached_property
    def _source(self) -> Source | None:
        """The samples as compiled code reads them, if there is some, and it can."""
        return self.federation.source() if isinstance(self.backend, Native) else None

    @property
    def batched(self) -> bool:
        """Whether clients share matrix operations, also in a group of one, so that grouping changes nothing."""
        return self.backend.batched

    def until(self, time_left: Callable[[], bool]) -> Trainer:
        """The same, with a deadline."""
        return replace(self, time_left=time_left)

    def groups(self, steps: Mapping[int, int], workers: int = 1) -> list[list[int]]:
        """The clients with work to do, those with most first, in groups that run side by side, one per worker."""
        clients = sorted((client for client in steps if steps[client] > 0), key=lambda client: (-steps[client], client))
        size = min(self.rows, -(-len(clients) // workers)) if self.batched else 1
        return [clients[i : i + size] for i in range(0, len(clients), size)]

    def work(
        self,
        assignments: Sequence[Assignment],
        start: Tensor,
        settings: RoundSettings,
        state: dict[str, Tensor],
        shared: Mapping[str, Payload],
        buffers: Tensor | None = None,
        purpose: Purpose = Purpose.BATCHES,
    ) -> LocalWork:
        """Work for some clients, one row each, whose steps do not increase, from the model ``start``.

        Args:
            assignments: What each client is to do.
            start: The model (n,) they start from.
            settings: What server and clients agree on for the round.
            state: Vectors that clients keep between rounds, a matrix (C, length) per name.
            shared: What the server broadcast besides the model.
            buffers: Float buffers that go with ``start``; default: the model's own.
            purpose: Which random numbers choose the mini-batches.

        Returns:
            The work, not begun yet.
        """
        chosen = self._chosen(assignments, settings, purpose)
        if settings.optimiser is not self.optimiser:
            settings = replace(settings, optimiser=self.optimiser)
        rows = self.backend.rows(start, len(assignments), buffers)
        if len(self.model.personal):
            state = {**state, PERSONAL: _renewed(rows.personal, state[PERSONAL], assignments)}
        clients = [one.client for one in assignments]
        data = CohortData(
            BatchPrefetcher(self.federation, chosen, rows, self._augmentation(clients, settings.round, len(chosen))),
            lambda limit: self._fisher_samples(clients, settings.round, limit),
            lambda row: self.federation.batch(torch.from_numpy(self.federation.train[clients[row]])),
            lambda wanted: [stream(self.seed, wanted, settings.round, client) for client in clients],
        )
        common = (rows, start, settings, assignments, state, shared, data, self.time_left)
        # All steps in one call, of samples as they are stored.
        whole = self.optimiser.plain and self.federation.augment is None
        if (source := self._source if whole else None) is None:
            return LocalWork(*common)
        return NativeWork(*common, NativeBatches(source, chosen, self.federation.labels_of(chosen)))

    def _augmentation(self, clients: Sequence[int], round_: int, steps: int) -> Augmentation | None:
        augment = self.federation.augment
        return None if augment is None else Augmentation(augment, self.seed, round_, clients, steps)

    def _chosen(self, assignments: Sequence[Assignment], settings: RoundSettings, purpose: Purpose) -> Tensor:
        """The samples of all mini-batches, (steps, C, B)."""
        most = max(one.steps for one in assignments)
        batches = [
            batch_indices(
                self.federation.train[one.client],
                most,
                settings.batch_size,
                stream(self.seed, purpose, settings.round, one.client),
            )
            for one in assignments
        ]
        return torch.from_numpy(np.stack(batches, axis=1))

    def _fisher_samples(self, clients: Sequence[int], round_: int, limit: int) -> FisherSamples:
        rngs = [stream(self.seed, Purpose.FISHER, round_, client) for client in clients]
        chosen, weights = fisher_samples([self.federation.train[client] for client in clients], limit, rngs)
        return *self.federation.batch(chosen), weights, [int(rng.integers(2**63)) for rng in rngs]

    def layer_seed(self, round_: int, client: int) -> int:
        """The seed of random layers (dropout) for one client's work."""
        return torch_seed(self.seed, Purpose.LAYERS, round_, client)

    def measure(self, w: Tensor, buffers: Tensor, samples: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sums and weights (S, metrics, 2) of metrics that are sums over samples, of the model at ``w``."""
        pool, source = self.federation, self._source
        if isinstance(self.backend, Native) and source is not None and self.objective.plain:
            chosen = torch.from_numpy(samples)
            right = (self.backend.compiled.predict(w, source, chosen) == pool.labels_of(chosen)).double()
            return torch.stack([right, torch.ones_like(right)], 1).unsqueeze(1).numpy()
        found = [self.objective.of_samples(outputs, y) for outputs, y in self._answers(w, buffers, samples)]
        return np.concatenate(found)

    def measure_client(self, w: Tensor, buffers: Tensor, client: int) -> NDArray[np.float64]:
        """Sums and weights (metrics, 2) of any metrics on a client's test data, of the model at ``w``."""
        samples = self.federation.test[client]
        if self.objective.per_sample:
            found = self.measure(w, buffers, samples)
            columns = np.ascontiguousarray(found.reshape(len(samples), -1).T)
            return np.array([column.sum() for column in columns]).reshape(-1, 2)
        outputs, y = zip(*self._answers(w, buffers, samples), strict=True)
        joined = tree_map(_joined, *outputs)
        return self.objective.of_client(joined, torch.cat(y), client)

    def _answers(self, w: Tensor, buffers: Tensor, samples: NDArray[np.int64]) -> Iterator[tuple[Any, Tensor]]:
        """What the task takes of the model's answers, and the targets, some samples at a time."""
        for start in range(0, len(samples), SAMPLES_AT_ONCE):
            x, y = self.federation.batch(torch.from_numpy(samples[start : start + SAMPLES_AT_ONCE]))
            yield self.backend.task.read(self.model.answers(w, buffers, x)), y


def _joined(*parts: Any) -> Any:
    return torch.cat(parts) if isinstance(parts[0], Tensor) and parts[0].dim() else parts[0]


def _renewed(personal: Tensor, kept: Tensor, assignments: Sequence[Assignment]) -> Tensor:
    """The personal part of rows, changed in place to what their clients kept of it, if they were sampled before."""
    for row, own, one in zip(personal, kept, assignments, strict=True):
        if one.last_upload != NO_ROUND:
            row.copy_(own)
    return personal
