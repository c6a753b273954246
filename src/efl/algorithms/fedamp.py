"""FedAMP (Huang et al. 2021): no global model; clients whose models are alike help each other.

The server keeps the last model w_k of every client that ever replied. It makes each client a cloud model of its own,
u_k = Σ_j ξ_kj w_j, with ξ_kj = α A'(‖w_k − w_j‖²) for j ≠ k and A'(x) = exp(−x/σ)/σ, so that near models count most,
and ξ_kk = 1 − Σ ξ_kj. The client minimises f_k + λ/(2α) ‖w − u_k‖², starting from u_k, and sends where it ended.

A client that does not reply, or does not finish, is represented by its last model. The model that is evaluated as the
global one is the mean of the clients' models.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from efl.algorithms.base import LocalWork, RoundSettings, ServerState, Step, Update
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.settings import NonNegative, Positive
from efl.training.local_work import vector
from efl.wire import Payload


@ALGORITHMS.register("fedamp")
class FedAMP(FedAvg):
    """Attentive message passing.

    Attributes:
        attraction: α/σ, the weight of another client with the very same model; all others together weigh at most 1.
        distance: σ, the squared distance at which that falls to 1/e.
        proximity: λ/α, how strongly a client is held at its cloud model.
    """

    scalable: ClassVar[bool] = False
    search_space: ClassVar[SearchSpace] = {
        "attraction": Range(1e-3, 1.0),
        "distance": Range(1.0, 1000.0),
        "proximity": Range(1e-3, 3.0),
    }
    attraction: Positive = 0.01
    distance: Positive = 30.0
    proximity: NonNegative = 0.1

    @property
    def personalised(self) -> bool:
        """The w_k, and nothing else."""
        return True

    def broadcast_to(self, server: ServerState, client: int) -> Payload | None:
        """u_k; of a client that never replied, w_k is the first model."""
        if not _models(server):
            return None
        own = server.tensors.get(str(client), server.w)
        others = [model for known, model in _models(server) if known != client]
        distances = torch.tensor([float((model - own).square().sum()) for model in others])
        weights = self.attraction * torch.exp(-distances / self.distance)
        weights /= weights.sum().clamp(min=1)
        cloud = own * (1 - float(weights.sum()))
        for model, weight in zip(others, weights.tolist(), strict=True):
            cloud.add_(model, alpha=weight)
        return self.codec.whole_models(cloud.unsqueeze(0))[0]

    def local_step(self, work: LocalWork) -> Step:
        """From u_k on f_k + λ/(2α) ‖w − u_k‖²:  w ← (1 − ηλ/α) w + (ηλ/α) u_k − ηg."""
        cloud, a = work.personal_models(), work.settings.eta * self.proximity
        work.W.copy_(cloud)
        return Step(keep=torch.full_like(work.start, 1 - a), shift=cloud * a, explicit=True)

    def changes_model(self, settings: RoundSettings) -> bool:
        """The common model never changes, so that nothing is sent for it."""
        return False

    def server_update(
        self, server: ServerState, updates: Sequence[Update], w_next: Tensor, settings: RoundSettings
    ) -> ServerState:
        """Keep the models."""
        return server.having(**{str(update.client): vector(update.sent) for update in updates})

    def evaluated_model(self, server: ServerState) -> Tensor:
        """The mean of the clients' models."""
        models = [model for _, model in _models(server)]
        return sum(models[1:], start=models[0].clone()) / len(models) if models else server.w


def _models(server: ServerState) -> list[tuple[int, Tensor]]:
    """The clients that replied so far and their models, in one order whatever happened, for sums depend on it."""
    models = ((int(name), model) for name, model in server.tensors.items() if name.isdigit())
    return sorted(models, key=lambda pair: pair[0])
