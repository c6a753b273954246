"""How a round's work is spread: how many clients run as one matrix, how many processes share it."""

from __future__ import annotations

import sys

from efl.processes import processors
from efl.training.backends.selection import Backend

FLOATS_IN_CACHE = 2**18
WORTH_SHARING = 2 * 10**8  # multiplications in a round, a hundredth of a second or so


def rows_at_once(backend: Backend, cohort: int) -> int:
    """As many clients side by side as keep the matrix of models in the cache; 1 where rows share nothing."""
    return max(1, min(cohort, FLOATS_IN_CACHE // backend.model.n)) if backend.batched else 1


def worker_processes(backend: Backend, cohort: int, samples_per_client: int) -> int:
    """A process for each processor, where a round is long enough to be shared and processes can be forked safely."""
    model = backend.model
    multiplications = model.n * samples_per_client * cohort
    if model.device.type != "cpu" or sys.platform != "linux" or multiplications < WORTH_SHARING:
        return 1
    return max(1, min(processors(), cohort))
