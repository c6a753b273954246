"""Local work: the rows, mini-batches and samples of some clients in one round."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.base import LocalWork, Parts, RoundSettings, unhurried
from efl.config import TrainingSection
from efl.federation import Federation
from efl.models import Batches, FlatModel, Rows
from efl.processes import processors
from efl.rng import Purpose, stream, torch_seed
from efl.wire import Payload

FLOATS_IN_CACHE = 2**18
FLOATS_AHEAD = 2**18  # of samples that are fetched at once
WORTH_SHARING = 2 * 10**8  # multiplications in a round, a hundredth of a second or so


@dataclass(frozen=True)
class Trainer:
    """Where local work is made: the network, the data, the seed, and how many clients run as one matrix.

    Work ends early when there is no ``time_left``.
    """

    model: FlatModel
    federation: Federation
    seed: int
    rows: int
    time_left: Callable[[], bool] = unhurried

    @property
    def batched(self) -> bool:
        """Whether clients share matrix operations; one in a group by itself does too, so that grouping changes nothing.

        The only client of a federation shares with nobody: PyTorch's own arithmetic makes its training plain SGD.
        """
        return self.model.chain is not None and len(self.federation) > 1

    def groups(self, steps: Mapping[int, int], hands: int = 1) -> list[list[int]]:
        """The clients with work to do, those with most first, in groups that run side by side; one a hand at least."""
        clients = sorted((client for client in steps if steps[client] > 0), key=lambda client: (-steps[client], client))
        size = min(self.rows, -(-len(clients) // hands)) if self.batched else 1
        return [clients[i : i + size] for i in range(0, len(clients), size)]

    def work(
        self,
        clients: Sequence[int],
        steps: Sequence[int],
        start: Tensor,
        buffers: Tensor,
        settings: RoundSettings,
        state: dict[str, Tensor],
        lost: list[Parts | None],
        shared: Parts,
        last: Sequence[int],
        personal: list[Payload | None],
        purpose: Purpose = Purpose.BATCHES,
    ) -> LocalWork:
        """Work for ``clients``, one row each, doing ``steps`` (not increasing) from the model ``start``."""
        pool = self.federation
        batches = np.stack(
            [
                batch_indices(
                    pool.train[client],
                    max(steps),
                    settings.batch_size,
                    stream(self.seed, purpose, settings.round, client),
                )
                for client in clients
            ],
            axis=1,
        )

        def samples(limit: int) -> tuple[Tensor, Tensor, Tensor, list[int]]:
            rngs = [stream(self.seed, Purpose.FISHER, settings.round, client) for client in clients]
            chosen, weights = fisher_samples([pool.train[client] for client in clients], limit, rngs)
            return *pool.batch(chosen), weights, [int(rng.integers(2**63)) for rng in rngs]

        def data(row: int) -> tuple[Tensor, Tensor]:
            return pool.batch(torch.from_numpy(pool.train[clients[row]]))

        rows = self.model.rows(start, len(clients), buffers, batched=self.batched)
        return LocalWork(
            rows=rows,
            start=start,
            settings=settings,
            steps=np.asarray(steps, dtype=np.int64),
            state=state,
            lost=lost,
            shared=shared,
            batch=Ahead(pool, torch.from_numpy(batches), rows),
            compiled=self._compiled(torch.from_numpy(batches)),
            samples=samples,
            last=np.asarray(last, dtype=np.int64),
            personal=personal,
            data=data,
            time_left=self.time_left,
        )

    def _compiled(self, chosen: Tensor) -> Batches | None:
        """The mini-batches for compiled code, if network and data are such that it can train on them."""
        source = self.federation.source() if self.model.compiled is not None and self.batched else None
        return None if source is None else Batches(source, chosen, self.federation.labels_of(chosen))

    def layer_seed(self, round_: int, client: int) -> int:
        """The seed of random layers (dropout) for one client's work."""
        return torch_seed(self.seed, Purpose.LAYERS, round_, client)


def auto_workers(model: FlatModel, training: TrainingSection) -> int:
    """A process for each processor, where a round is long enough to be shared and processes can be forked safely."""
    multiplications = model.n * training.batch_size * training.local_steps * training.cohort
    if model.device.type != "cpu" or sys.platform != "linux" or multiplications < WORTH_SHARING:
        return 1
    return max(1, min(processors(), training.cohort))


class Ahead:
    """The mini-batches of some clients, from sample indices (steps, C, B).

    Inputs and labels are fetched for several steps at once, labels for more of them.
    """

    def __init__(self, pool: Federation, indices: Tensor, rows: Rows) -> None:
        device, samples = rows.model.device, indices[0].numel()
        self._x = _Fetched(lambda some: pool.inputs_of(some).to(device), indices, samples * pool.x[0].numel())
        labels = samples * pool.y[0].numel() * (pool.classes if rows.batched else 1)
        self._y = _Fetched(lambda some: rows.targets(pool.labels_of(some).to(device)), indices, labels)

    def __call__(self, step: int, active: int) -> tuple[Tensor, Tensor]:
        """Samples (active, B, …) and labels of this step, for the first ``active`` clients."""
        x, y = self._x(step), self._y(step)
        return (x, y) if active == x.shape[0] else (x[:active], y[:active])


class _Fetched:
    """Something of every step, ``numbers`` in each, fetched for several steps at once."""

    def __init__(self, fetch: Callable[[Tensor], Tensor], indices: Tensor, numbers: int) -> None:
        self.fetch, self.indices = fetch, indices
        self.at_once = max(1, FLOATS_AHEAD // max(1, numbers))
        self._first = 0
        self._block: tuple[Tensor, ...] = ()

    def __call__(self, step: int) -> Tensor:
        if not self._first <= step < self._first + len(self._block):
            self._first = step
            self._block = self.fetch(self.indices[step : step + self.at_once]).unbind()
        return self._block[step - self._first]


def auto_rows(model: FlatModel, cohort: int) -> int:
    """As many clients side by side as keep the matrix of models in the processor's cache; 1 for other networks."""
    if model.chain is None:
        return 1
    return max(1, min(cohort, FLOATS_IN_CACHE // model.n))


def batch_indices(
    samples: NDArray[np.int64], steps: int, batch_size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(steps, batch_size): one random permutation of the samples after another, cut into full batches."""
    needed = steps * batch_size
    passes = -(-needed // len(samples))
    order = np.concatenate([rng.permutation(samples) for _ in range(passes)])
    return order[:needed].reshape(steps, batch_size)


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
