"""Limits on the norms of updates, for clients that the server does not control."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.base import Part, Parts, RoundSettings
from efl.algorithms.state import Limit
from efl.errors import WireError
from efl.wire import Field, Payload
from efl.wire.sparse import squared_length

Amount = tuple[str, float, float]  # what it is, its norm, and its limit


@dataclass(frozen=True, eq=False)
class Measured:
    """A vector whose norm is found once, for all clients of a round."""

    vector: Tensor

    @cached_property
    def norm(self) -> float:
        """Its Euclidean norm."""
        return _norm(self.vector.numpy())


@dataclass(frozen=True)
class NormLimits:
    """Rejects parts of replies whose norm is too large, in terms of b = ``norm_bound`` · max(1, ‖w‖).

    What a part is, its algorithm declares (`Part.limit`). An update may be as long as b, and the anchor of a field as
    far away. A gradient, such as SCAFFOLD's control, may be as long as b, and where that is more, so long that a round
    of E steps of size η along it is; so may those whose squares a Fisher diagonal is made of. A vote is no larger than
    one. For the model's buffers the bound is that of a model of their length, squared: some are variances.

    Values that are not finite never get here: they are no payload. With limits, a client whose own training diverges is
    rejected, too, and does not end the run.
    """

    norm_bound: float

    def check(
        self,
        client: int,
        parts: Parts,
        declared: Mapping[str, Part],
        w: Measured,
        buffers: Measured,
        settings: RoundSettings,
    ) -> None:
        """Raise `WireError` if a part exceeds its norm limit; ``w`` and ``buffers`` are the server's model."""
        for name, part in parts.items():
            if name in declared:
                amounts = self._amounts(name, part, declared[name].limit, w, settings)
            else:
                amounts = iter([(name, _norm(part.values - buffers.vector.numpy()), self._bound(buffers) ** 2)])
            for what, norm, limit in amounts:
                if not norm <= limit:
                    raise WireError(f"client {client} sent {what} of norm {norm:.3g}; the limit is {limit:.3g}")

    def _amounts(
        self, name: str, part: Payload, limit: Limit, w: Measured, settings: RoundSettings
    ) -> Iterator[Amount]:
        bound = self._bound(w)
        gradient = bound / min(1.0, settings.local_steps * settings.eta)
        if isinstance(part, Field):
            yield f"a {name} whose anchor is", _norm(part.displacement), bound
            yield f"a {name} of gradients", _root_of_sum(part, settings.batch_size), gradient
        elif limit == "vote":
            yield f"a vote ({name})", float(np.abs(part.values).max(initial=0.0)), 1.0
        elif limit == "update":
            yield f"an {name}", _norm(part.values - w.vector.numpy() if part.absolute else part.values), bound
        else:
            yield f"a {name}", _norm(part.values), gradient

    def _bound(self, model: Measured) -> float:
        return self.norm_bound * max(1.0, model.norm)


def _norm(values: NDArray[np.float32]) -> float:
    return sqrt(squared_length(values))


def _root_of_sum(field: Field, batch_size: int) -> float:
    """The length of a gradient on a mini-batch of B samples, by the field's Fisher diagonal: √(Σ u / B)."""
    fisher: NDArray[Any] = field.fisher
    total = float(fisher.sum(dtype=np.float64))
    if field.factored_fisher is not None:
        total = max(total, field.factored_fisher.total)
    return sqrt(total / batch_size)
