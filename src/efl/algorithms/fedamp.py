"""FedAMP (Huang et al. 2021): no global model; clients whose models are alike help each other.

The server keeps the last model w_k of every client it has heard. It makes each client a cloud model of its own, u_k =
Σ_j ξ_kj w_j, with ξ_kj = α A'(‖w_k − w_j‖²) for j ≠ k and A'(x) = exp(−x/σ)/σ, so that near models count most, and
ξ_kk = 1 − Σ ξ_kj. The client minimises f_k + λ/(2α) ‖w − u_k‖², starting from u_k, and sends where it ended.

A client that is silent, or does not finish, is represented by its last model. The model that is evaluated as the
global one is the mean of the clients' models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, RoundSettings, ServerState
from efl.algorithms.components.reduction import vector
from efl.algorithms.fedavg import FedAvg
from efl.settings import NonNegative, Positive
from efl.wire import Payload


@dataclass(frozen=True)
class FedAMP(FedAvg):
    """Attentive message passing.

    attraction
        α/σ, the weight of another client with the very same model; all others together weigh at most 1.
    distance
        σ, the squared distance at which that falls to 1/e.
    proximity
        λ/α, how strongly a client is held at its cloud model.
    """

    attraction: Positive = 0.01
    distance: Positive = 30.0
    proximity: NonNegative = 0.1

    @property
    def personal_models(self) -> bool:
        """The w_k, and nothing else."""
        return True

    def personal(self, server: ServerState, client: int) -> Payload | None:
        """u_k; of a client that the server has not heard of, w_k is the first model."""
        if not server.tensors:
            return None
        own = server.tensors.get(str(client), server.w)
        others = [model for known, model in _models(server) if known != client]
        distances = torch.tensor([float((model - own).square().sum()) for model in others])
        weights = self.attraction * torch.exp(-distances / self.distance)
        weights /= weights.sum().clamp(min=1)
        cloud = own * (1 - float(weights.sum()))
        for model, weight in zip(others, weights.tolist(), strict=True):
            cloud.add_(model, alpha=weight)
        return self._sent(cloud)

    def local_update(self, work: LocalWork) -> list[Parts]:
        """SGD on f_k + λ/(2α) ‖w − u_k‖² from u_k."""
        at = work.W.device
        cloud = torch.stack([work.start if told is None else vector(told).to(at) for told in work.personal])
        work.W.copy_(cloud)
        eta = work.settings.eta
        for active, gradient in work.descent():
            work.W[:active].lerp_(cloud[:active], eta * self.proximity).sub_(gradient, alpha=eta)
        return self._whole_models(work)

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """Keep the models; the common one never changes, so that nothing is sent for it."""
        return server.having(**{str(c.client): vector(c.parts["update"]) for c in contributions}), None

    def model(self, server: ServerState) -> Tensor:
        """The mean of the clients' models."""
        models = [model for _, model in _models(server)]
        return sum(models[1:], start=models[0].clone()) / len(models) if models else server.w


def _models(server: ServerState) -> list[tuple[int, Tensor]]:
    """The clients heard so far and their models, in one order whatever happened, for sums depend on it."""
    return sorted(((int(name), model) for name, model in server.tensors.items()), key=lambda pair: pair[0])
