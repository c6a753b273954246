"""Server optimisers: the aggregate is a pseudo-gradient, along which the server takes a step of its own.

With Δ the aggregate of a round, the server goes w ← w + η_s · step(Δ) instead of w ← w + Δ. Momentum is FedAvgM's (Hsu
et al. 2019); Adagrad, Adam and Yogi are those of *Adaptive Federated Optimization* (Reddi et al. 2021, Algorithm 2):

    m ← β₁ m + (1 − β₁) Δ,   v ← v + Δ²                            (Adagrad)
                             v ← β₂ v + (1 − β₂) Δ²                (Adam)
                             v ← v − (1 − β₂) Δ² sign(v − Δ²)      (Yogi)
    w ← w + η_s m / (√v + τ),   with v = τ² before the first round, and no bias correction, as there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field as Constraint
from torch import Tensor

from efl.algorithms.state import RoundSettings, ServerState, Update
from efl.algorithms.transform import TRANSFORMS, Transform
from efl.settings import Positive

Decay = Annotated[float, Constraint(ge=0, lt=1)]


@TRANSFORMS.register("server_momentum")
class ServerMomentum(Transform):
    """``rate`` is η_s; m ← β m + Δ, and the server moves by η_s m."""

    rate: Positive = 1.0
    momentum: Decay = 0.9

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """M = 0."""
        return {"server_momentum": torch.zeros_like(w)}

    def on_server(
        self, delta: Tensor, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Tensor, ServerState]:
        """Along the momentum."""
        momentum = self.momentum * server.tensors["server_momentum"] + delta
        return self.rate * momentum, server.having(server_momentum=momentum)


class Adaptive(Transform):
    """What Adagrad, Adam and Yogi share: ``rate`` is η_s, ``beta1`` β₁, ``tau`` τ."""

    rate: Positive = 0.1
    beta1: Decay = 0.9
    tau: Positive = 1e-3

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """M = 0, v = τ²."""
        return {"server_mean": torch.zeros_like(w), "server_variance": torch.full_like(w, self.tau**2)}

    def on_server(
        self, delta: Tensor, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Tensor, ServerState]:
        """Along the mean, each coordinate by its own measure."""
        mean = self.beta1 * server.tensors["server_mean"] + (1 - self.beta1) * delta
        variance = self.variance(server.tensors["server_variance"], delta.square())
        step = self.rate * mean / (variance.sqrt() + self.tau)
        return step, server.having(server_mean=mean, server_variance=variance)

    @abstractmethod
    def variance(self, before: Tensor, squares: Tensor) -> Tensor:
        """V after a round whose aggregate has these squares."""


@TRANSFORMS.register("server_adagrad")
class ServerAdagrad(Adaptive):
    """Squares add up."""

    beta1: Decay = 0.0

    def variance(self, before: Tensor, squares: Tensor) -> Tensor:
        """V + Δ²."""
        return before + squares


@TRANSFORMS.register("server_adam")
class ServerAdam(Adaptive):
    """Squares are averaged; ``beta2`` is β₂."""

    beta2: Decay = 0.99

    def variance(self, before: Tensor, squares: Tensor) -> Tensor:
        """β₂ v + (1 − β₂) Δ²."""
        return self.beta2 * before + (1 - self.beta2) * squares


@TRANSFORMS.register("server_yogi")
class ServerYogi(Adaptive):
    """Squares are approached in steps of their own size; ``beta2`` is β₂."""

    beta2: Decay = 0.99

    def variance(self, before: Tensor, squares: Tensor) -> Tensor:
        """V − (1 − β₂) Δ² sign(v − Δ²)."""
        return before - (1 - self.beta2) * squares * torch.sign(before - squares)
