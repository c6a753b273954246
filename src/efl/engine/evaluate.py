"""How good the model is: the global one, and each client's own after local training, on each client's test data."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.base import RoundSettings, ServerState
from efl.engine.client import ClientHost
from efl.engine.hand import SAMPLES_AT_ONCE, Briefing, Score
from efl.wire import encode

Accuracies = NDArray[np.float64]
BATCHES_A_JOB = 8


def global_accuracies(host: ClientHost, w: Tensor, buffers: Tensor) -> Accuracies:
    """Test accuracy of one model on every client's own test data."""
    tests = host.workshop.federation.test
    everyone = np.concatenate(tests)
    size = BATCHES_A_JOB * SAMPLES_AT_ONCE
    host.crew.tell(w, buffers)
    pieces = host.crew.run([Score(everyone[start : start + size]) for start in range(0, len(everyone), size)])
    sizes = np.array([len(test) for test in tests])
    sums = np.add.reduceat(np.concatenate(pieces), np.cumsum(sizes) - sizes)
    accuracies: Accuracies = sums / sizes
    return accuracies


def own_accuracies(
    host: ClientHost, clients: Sequence[int], server: ServerState, buffers: Tensor, settings: RoundSettings
) -> Accuracies:
    """Test accuracy of each client's own model: the global one after E more local steps, on its own test data.

    An observer's view: nothing is sent, stored or billed. Where clients are asked several times for one piece of work,
    it is the last of these that is looked at.
    """
    exchanges = host.algorithm.exchanges
    settings = replace(settings, round=settings.round - settings.round % exchanges + exchanges - 1)
    told, plain = host.algorithm.broadcast(server, settings), host.hand.plain
    briefing = Briefing(settings, {name: encode(part, plain) for name, part in told.items()})
    alone = {client: host.algorithm.personal(server, client) for client in clients}
    personal = {client: None if part is None else encode(part, plain) for client, part in alone.items()}
    scores = host.score_own(personal, briefing, server.w, buffers)
    return np.array([scores[client] for client in clients])


def worst_decile(accuracies: Sequence[float] | Accuracies) -> float:
    """Mean accuracy of the worst tenth of the clients (at least one).

    >>> worst_decile([0.1] + [0.9] * 19)
    0.5
    """
    ordered = np.sort(np.asarray(accuracies))
    return float(ordered[: -(-len(ordered) // 10)].mean())
