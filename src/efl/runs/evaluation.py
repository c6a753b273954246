"""How good models are on each client's test data: those that clients have after local training, and the worst."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.base import RoundSettings, ServerState
from efl.client.host import ClientHost
from efl.client.worker import Briefing
from efl.wire import encode

Accuracies = NDArray[np.float64]


def own_accuracies(
    host: ClientHost, clients: Sequence[int], server: ServerState, buffers: Tensor, settings: RoundSettings
) -> Accuracies:
    """Test accuracy of each client's own model on its own test data.

    That is its personal model after another round of work, or the global one after E steps of SGD. An observer's view:
    nothing is sent, stored or billed.
    """
    algorithm, plain = host.algorithm, host.hand.plain
    told = algorithm.broadcast(server, settings) if algorithm.personalised else {}
    briefing = Briefing(settings, {name: encode(part, plain) for name, part in told.items()})
    alone = {client: algorithm.broadcast_to(server, client) if algorithm.personalised else None for client in clients}
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
