"""FedAvg with a server optimiser: FedAvgM (Hsu et al. 2019); FedAdagrad, FedAdam, FedYogi (Reddi et al. 2021).

Clients are FedAvg's. What the server does with the mean of their displacements is a transformation
(`efl.algorithms.transforms.server_optimisers`), which goes with any other algorithm as well.
"""

from collections.abc import Sequence
from typing import ClassVar

from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.algorithms.transform import Transform
from efl.algorithms.transforms.server_optimisers import (
    Decay,
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerYogi,
)
from efl.settings import Positive


@ALGORITHMS.register("fedavgm")
class FedAvgM(FedAvg):
    """``server_rate`` is η_s, ``server_momentum`` β."""

    search_space: ClassVar[SearchSpace] = {
        "server_rate": Range(0.1, 3.0),
        "server_momentum": Range(0.0, 0.95, log=False),
    }
    server_rate: Positive = 1.0
    server_momentum: Decay = 0.9

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """Momentum at the server."""
        return (ServerMomentum(self.server_rate, self.server_momentum),)


@ALGORITHMS.register("fedadagrad")
class FedAdagrad(FedAvg):
    """``server_rate`` is η_s, ``tau`` τ, the degree of adaptivity."""

    search_space: ClassVar[SearchSpace] = {"server_rate": Range(1e-3, 1.0), "tau": Range(1e-4, 0.1)}
    server_rate: Positive = 0.1
    beta1: Decay = 0.0
    tau: Positive = 1e-3

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """Adagrad at the server."""
        return (ServerAdagrad(self.server_rate, self.beta1, self.tau),)


@ALGORITHMS.register("fedadam")
class FedAdam(FedAvg):
    """``server_rate`` is η_s, ``beta1`` and ``beta2`` are the decays, ``tau`` is τ, the degree of adaptivity."""

    search_space: ClassVar[SearchSpace] = {"server_rate": Range(1e-3, 1.0), "tau": Range(1e-4, 0.1)}
    server_rate: Positive = 0.1
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: Positive = 1e-3

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """Adam at the server."""
        return (ServerAdam(self.server_rate, self.beta1, self.tau, self.beta2),)


@ALGORITHMS.register("fedyogi")
class FedYogi(FedAdam):
    """The same settings as FedAdam's."""

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """Yogi at the server."""
        return (ServerYogi(self.server_rate, self.beta1, self.tau, self.beta2),)
