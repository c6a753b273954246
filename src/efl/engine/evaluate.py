"""How good the model is: the global one, and each client's own after local training, on each client's test data."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.base import Algorithm, RoundSettings, ServerState
from efl.engine.client import train
from efl.engine.state import StateStore
from efl.engine.work import Workshop
from efl.federation import Federation
from efl.models import FlatModel
from efl.rng import Purpose
from efl.wire import Context, decode, encode

SAMPLES_AT_ONCE = 250
Accuracies = NDArray[np.float64]


def global_accuracies(model: FlatModel, federation: Federation, w: Tensor, buffers: Tensor) -> Accuracies:
    """Test accuracy of one model on every client's own test data."""
    everyone = np.concatenate(federation.test)
    correct = _correct(model, w, buffers, federation, everyone)
    sizes = [len(test) for test in federation.test]
    sums = np.add.reduceat(correct, np.cumsum([0, *sizes[:-1]]))
    accuracies: Accuracies = sums / sizes
    return accuracies


def own_accuracies(
    algorithm: Algorithm,
    workshop: Workshop,
    store: StateStore,
    server: ServerState,
    buffers: Tensor,
    settings: RoundSettings,
) -> Accuracies:
    """Test accuracy of each client's own model: the global one after E more local steps, on its own test data.

    An observer's view: nothing is sent, stored or billed.
    """
    model, federation = workshop.model, workshop.federation
    plain = Context(settings.layout)
    told = algorithm.broadcast(server, settings)
    shared = {name: decode(encode(part, plain), plain) for name, part in told.items()}
    accuracies = np.zeros(len(federation))
    for group in workshop.groups(dict.fromkeys(range(len(federation)), settings.local_steps)):
        work = workshop.work(
            group,
            [settings.local_steps] * len(group),
            server.w,
            buffers,
            settings,
            store.read(group),
            [None] * len(group),
            shared,
            Purpose.OWN_MODEL,
        )
        train(algorithm, workshop, group, work)
        for row, client in enumerate(group):
            test = federation.test[client]
            accuracies[client] = _correct(model, work.W[row], work.rows.buffers[row], federation, test).mean()
    return accuracies


def worst_decile(accuracies: Sequence[float] | Accuracies) -> float:
    """Mean accuracy of the worst tenth of the clients (at least one).

    >>> worst_decile([0.1] + [0.9] * 19)
    0.5
    """
    ordered = np.sort(np.asarray(accuracies))
    return float(ordered[: -(-len(ordered) // 10)].mean())


def _correct(
    model: FlatModel, w: Tensor, buffers: Tensor, federation: Federation, indices: NDArray[np.int64]
) -> Accuracies:
    """How right the answer to each sample is: 0 or 1, for a sequence the share of its positions."""
    pieces: list[Accuracies] = []
    for start in range(0, len(indices), SAMPLES_AT_ONCE):
        x, y = federation.batch(torch.from_numpy(indices[start : start + SAMPLES_AT_ONCE]))
        answers = model.outputs(w, buffers, x).argmax(-1)
        pieces.append((answers == y).double().view(len(y), -1).mean(1).numpy())
    return np.concatenate(pieces)
