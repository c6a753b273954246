"""Cohorts on a network: as many clients more as usually do not reply.

A cohort is how many updates a round is to have. Where nodes come and go, or their replies are rejected, it would have
fewer, and not as many in each: learning is slower, and the memory of both sides noisier. So more are asked, by the
share of requests that were left without a valid reply so far. Where everybody replies, nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from efl.server.client_table import ClientTable
from efl.server.sampling import Cohort, Sampler

MOST = 3.0  # times the cohort


@dataclass(frozen=True)
class Oversampler:
    """Has another sampler draw cohorts that are larger by what is usually lost of them."""

    sampler: Sampler

    @property
    def needs_reachable(self) -> bool:
        """As the other sampler."""
        return self.sampler.needs_reachable

    def sample(self, table: ClientTable, available: NDArray[np.bool_], cohort: int, rng: np.random.Generator) -> Cohort:
        """A cohort of which about ``cohort`` clients will reply."""
        rates = table.response_rates()[available]
        factor = min(MOST, 1 / float(rates.mean())) if len(rates) else 1.0
        return self.sampler.sample(table, available, round(cohort * factor), rng)
