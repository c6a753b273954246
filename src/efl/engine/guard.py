"""What the server demands of updates that come from machines it does not control."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from efl.algorithms.base import Parts
from efl.errors import WireError
from efl.wire import Dense, Field


@dataclass(frozen=True)
class Guard:
    """Refuses updates whose norm is more than ``norm_bound`` times that of the model, or 1 if the model is smaller.

    Values that are not finite never get here: they are no payload. With a guard, a client whose own training leaves the
    finite numbers is refused, too, and does not end the run.
    """

    norm_bound: float

    def check(self, client: int, parts: Parts, w: Tensor) -> None:
        """Raise `WireError` if the update among ``parts`` would move the model ``w`` absurdly far."""
        update = parts.get("update")
        if update is None or isinstance(update, Field):
            return
        values = update.values - w.numpy() if isinstance(update, Dense) else update.values
        norm = float(np.linalg.norm(values.astype(np.float64)))
        limit = self.norm_bound * max(1.0, float(w.double().norm()))
        if not norm <= limit:
            raise WireError(f"client {client} sent an update of norm {norm:.3g}; at most {limit:.3g} is taken")
