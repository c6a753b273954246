"""What acts on every update, around any algorithm: clipping, noise, robust reduction, server optimisers, memories.

As in Optax: small pieces, each with its own state, composed by `chain`. Clients apply a chain in order, the server in
reverse. Stages that a transformation does not override cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from efl.algorithms.base import Algorithm
from efl.algorithms.components.admission import Increment
from efl.algorithms.components.reduction import delta_of
from efl.algorithms.compression.codec import Codec
from efl.algorithms.state import RoundSettings, ServerState, Update
from efl.errors import UserError
from efl.plugins import Registry
from efl.settings import Settings
from efl.training.local_work import LocalWork
from efl.wire import Payload

A = TypeVar("A", bound=Algorithm)

Reduce = Callable[[Tensor, Sequence[float]], Tensor]
"""From deltas (K, n) and their weights, which sum to one, to one delta (n,)."""
Release = Callable[[Sequence[Update], ServerState, RoundSettings], tuple[Tensor, ServerState]]
"""From updates, possibly none, to one delta (n,), and the server's state."""


class Transform(Settings):
    """A stage between training and the codec; fields are its hyper-parameters.

    Example:
        >>> class Halve(Transform):
        ...     def on_client(self, delta, work):
        ...         return delta / 2
        >>> from efl.algorithms import FedAvg
        >>> chain(FedAvg(), Halve()).transforms
        (Halve(),)
    """

    keeps_uploads: ClassVar[bool] = False  # whether clients keep each upload until they know that it arrived

    def client_state(self, n: int) -> Mapping[str, int]:
        """Vectors that every client keeps between rounds, and how long each is; found in ``work.state``."""
        return {}

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """Tensors that the server keeps between rounds; found in ``server.tensors``."""
        return {}

    def on_client(self, delta: Tensor, work: LocalWork) -> Tensor:
        """The deltas (C, n) before a codec adds what it kept back."""
        return delta

    def on_sent(self, total: Tensor, work: LocalWork) -> Tensor:
        """The deltas (C, n) after that, as they are about to be encoded: bounds that must hold are set here."""
        return total

    def on_encoded(self, work: LocalWork, updates: Sequence[Payload]) -> None:
        """After encoding: what the server will see of each row's delta, for transformations that must know."""

    def weigh(self, weights: Sequence[float], updates: Sequence[Update]) -> Sequence[float]:
        """How much each delta counts."""
        return weights

    @property
    def reduce(self) -> Reduce | None:
        """Takes the place of the weighted sum, if not None: every update then counts as what it makes of all."""
        return None

    def remembered(self, sent: Payload, settings: RoundSettings) -> float:
        """How much of what was sent both sides remember, so that the next update is what differs from it."""
        return 0.0

    def admit(
        self, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Sequence[Update], ServerState]:
        """What updates count as, before anything is made of them: memories, fields and sums see nothing else."""
        if self.reduce is None or not updates:
            return updates, server
        deltas = torch.stack([delta_of(update.delta, server.w) for update in updates])
        total = fsum(update.share for update in updates)
        shares = [update.share / total if total else 1 / len(updates) for update in updates]
        one = Increment(self.reduce(deltas, shares).numpy())
        return [replace(update, counts_as=one) for update in updates], server

    @property
    def release(self) -> Release | None:
        """Takes the place of the weighted sum where nothing else may be known of the updates, if not None.

        Neither algorithm nor codec nor any other transformation sees them then, and a round without any has one, too.
        """
        return None

    def on_server(
        self, delta: Tensor, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Tensor, ServerState]:
        """The aggregate (n,) before it is encoded, and the server's state."""
        return delta, server


TRANSFORMS: Registry[type[Transform]] = Registry(
    "transform",
    lambda thing: thing if isinstance(thing, type) and issubclass(thing, Transform) else None,
    built_in="efl.algorithms.transforms",
)
"""The transformations known by name."""


def overrides(transform: Transform, stage: str) -> bool:
    """Whether a transformation does anything at this stage."""
    return getattr(type(transform), stage) is not getattr(Transform, stage)


def chained_like(changed: A, algorithm: A) -> A:
    """The algorithm with other settings, with what was chained to it before."""
    if changed is not algorithm:
        object.__setattr__(changed, "added_transforms", algorithm.added_transforms)
        object.__setattr__(changed, "replaced_codec", algorithm.replaced_codec)
    return changed


def chain(algorithm: A, *transforms: Transform, codec: Codec | None = None) -> A:
    """An algorithm whose every update passes through ``transforms``.

    Args:
        algorithm: What trains; may be a chain itself.
        transforms: In the order in which clients apply them; the server applies them in reverse.
        codec: How deltas travel instead of the algorithm's own way.

    Returns:
        The same algorithm, chained.

    Raises:
        UserError: Something that is no transformation, or two that keep state under the same name.

    Example:
        >>> from efl import ClipByNorm, FedAvg, chain
        >>> chain(FedAvg(), ClipByNorm(1.0)).uses_incomplete
        False
    """
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise UserError(f"chain takes transformations after the algorithm, not {transform!r:.60}")
    if algorithm.requests_per_update > 1:
        raise UserError(f"{type(algorithm).__name__} uploads gradients in turn with models; it cannot be chained")
    chained = replace(algorithm)
    object.__setattr__(chained, "added_transforms", (*algorithm.added_transforms, *transforms))
    object.__setattr__(chained, "replaced_codec", codec or algorithm.replaced_codec)
    nothing = torch.zeros(1)
    kept = [name for stage in chained.transforms for name in (*stage.client_state(1), *stage.init(nothing))]
    if repeated := sorted(name for name, count in Counter(kept).items() if count > 1):
        raise UserError(f"two transformations keep {repeated[0]!r}; a chain takes each of them once")
    return chained
