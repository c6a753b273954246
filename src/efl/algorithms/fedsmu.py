"""FedSMU (Lu et al. 2025): a Lion optimiser split between clients and server; a bit per parameter goes up.

Client k trains as in FedAvg. With Δ_k what it moved and m_k its momentum it sends the signs of β₁ m_k + (1 − β₁) Δ_k,
and then lets m_k ← β₂ m_k + (1 − β₂) Δ_k. The server takes the mean of the signs, each client counting the same, and a
step of length γ with weight decay ω:  w ← (1 − γω) w + γ · mean.

As in its authors' code (github.com/lxy66888/fedsmu), which lets γ decay by itself; here it is in units of η and falls
with it. A bit has no room for zeros: they count as positive in even rounds and as negative in odd ones.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from efl.algorithms.base import LocalWork, RoundSettings, ServerState, Update
from efl.algorithms.compression.codec import Codec, TwoWay, Uncompressed
from efl.algorithms.compression.signs import MajorityVote
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.algorithms.transform import Transform
from efl.algorithms.transforms.server_optimisers import Decay
from efl.settings import NonNegative, Positive

MOMENTUM = "momentum"


class Lion(Transform):
    """What is sent is Lion's direction; the server's step along the mean of their signs is γ = ``step``·η long."""

    beta1: Decay = 0.9
    beta2: Decay = 0.9
    step: Positive = 0.2
    weight_decay: NonNegative = 0.01

    def client_state(self, n: int) -> Mapping[str, int]:
        """m_k."""
        return {MOMENTUM: n}

    def on_client(self, delta: Tensor, work: LocalWork) -> Tensor:
        """β₁ m_k + (1 − β₁) Δ_k."""
        momentum = work.state[MOMENTUM].to(delta.device)
        work.state[MOMENTUM] = torch.lerp(delta, momentum, self.beta2).cpu()
        return torch.lerp(delta, momentum, self.beta1)

    def on_server(
        self, delta: Tensor, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Tensor, ServerState]:
        """γ · (mean − ω w)."""
        return self.step * settings.eta * (delta - self.weight_decay * server.w), server


@ALGORITHMS.register("fedsmu")
class FedSMU(FedAvg):
    """Symbolic model updates.

    Attributes:
        step: γ/η, what a parameter moves in a round in which all clients agree on it, in units of η.
        beta1: β₁, how much of the momentum is in what is sent.
        beta2: β₂, how much of it is kept.
        weight_decay: ω, in units of γ.
    """

    scalable: ClassVar[bool] = False
    search_space: ClassVar[SearchSpace] = {"step": Range(0.02, 2.0)}
    step: Positive = 0.2
    beta1: Decay = 0.9
    beta2: Decay = 0.9
    weight_decay: NonNegative = 0.01

    @property
    def default_codec(self) -> Codec:
        """Signs up, whole models down."""
        return TwoWay(MajorityVote(), Uncompressed(self.precision))

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """Lion's two halves."""
        return (Lion(self.beta1, self.beta2, self.step, self.weight_decay),)

    def weights(self, updates: Sequence[Update], settings: RoundSettings) -> Sequence[float]:
        """All the same."""
        return [1 / len(updates)] * len(updates)
