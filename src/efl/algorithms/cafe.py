"""CAFe (arXiv 2512.22623): the last aggregate serves all clients as a control variate for their compression.

Clients keep nothing. Each sends its update without the last aggregate, Q(Δ_k − Δ̄_{τ−1}), which is shorter than Δ_k
where clients go on as they went, and so loses less to a biased compression; the server adds Δ̄_{τ−1} to the mean. The
aggregate is broadcast with the model. Without compression it is FedAvg.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from efl.algorithms.base import LocalWork, Parts, RoundSettings, ServerState, Update
from efl.algorithms.compression.codec import Codec
from efl.algorithms.compression.ternary import SparseTernary
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.transform import Transform
from efl.settings import Density
from efl.training.local_work import vector
from efl.wire import Dense

AGGREGATE = "aggregate"


class SharedVariate(Transform):
    """Δ − Δ̄ up; Δ̄ is added again at the server."""

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """No aggregate yet."""
        return {AGGREGATE: torch.zeros_like(w)}

    def on_client(self, delta: Tensor, work: LocalWork) -> Tensor:
        """Without the last aggregate, if there was one."""
        shared = work.shared.get(AGGREGATE)
        return delta if shared is None else delta - vector(shared)

    def on_server(
        self, delta: Tensor, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Tensor, ServerState]:
        """With it, which is then the next one."""
        renewed = delta + server.tensors[AGGREGATE]
        return renewed, server.having(**{AGGREGATE: renewed})


@ALGORITHMS.register("cafe")
class CAFe(FedAvg):
    """FedAvg with the largest entries up; ``density`` is the share of them that is sent."""

    density: Density = 0.01

    @property
    def default_codec(self) -> Codec:
        """The largest entries of an upload, rounded to one magnitude; whole models down."""
        return SparseTernary(self.density, 1.0)

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """What FedAvg does with incomplete work, and then the variate."""
        return (*super().default_transforms, SharedVariate())

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """The last aggregate, once there is one."""
        last = server.tensors[AGGREGATE]
        return {AGGREGATE: Dense(last.numpy())} if bool(last.any()) else {}
