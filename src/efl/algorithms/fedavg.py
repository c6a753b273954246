"""FedAvg (McMahan et al. 2017): average the models of the clients that finished.

Clients run plain SGD from the server's model. The server averages them weighted by their sample counts. A client
that does not complete its E steps before the round ends is dropped, as in the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, RoundSettings, ServerState, UploadTypes
from efl.algorithms.components.reduction import averaged_model
from efl.algorithms.components.weights import by_samples
from efl.settings import Settings
from efl.wire import Dense, Payload


@dataclass(frozen=True)
class FedAvg(Settings):
    """Federated averaging; ``precision`` is how models travel, both ways."""

    precision: Literal["float32", "bfloat16"] = "float32"

    @property
    def upload_types(self) -> UploadTypes:
        """Whole models."""
        return {"update": Dense}

    @property
    def uses_incomplete(self) -> bool:
        """Stragglers are dropped."""
        return False

    @property
    def exchanges(self) -> int:
        """Clients are asked once."""
        return 1

    @property
    def personal_models(self) -> bool:
        """There is one model for all."""
        return False

    def start(self, w: Tensor) -> ServerState:
        """Nothing but the model."""
        return ServerState(w)

    def client_state(self, n: int) -> Mapping[str, int]:
        """Clients keep nothing."""
        return {}

    @property
    def remembers(self) -> Sequence[str]:
        """What is lost is lost."""
        return ()

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """The model says it all."""
        return {}

    def personal(self, server: ServerState, client: int) -> Payload | None:
        """Everybody is told the same."""
        return None

    def local_update(self, work: LocalWork) -> list[Parts]:
        """SGD on f_k; the whole model is sent."""
        work.sgd()
        return self._whole_models(work)

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """W ← Σ n_k w_k / Σ n_k over those who answered."""
        if not contributions:
            return server, None
        models = [contribution.parts["update"] for contribution in contributions]
        return server, self._sent(averaged_model(server.w, models, self._weights(contributions)))

    def model(self, server: ServerState) -> Tensor:
        """The server's model."""
        return server.w

    def _weights(self, contributions: Sequence[Contribution]) -> list[float]:
        """How much each model counts."""
        return by_samples([contribution.size for contribution in contributions])

    def _whole_models(self, work: LocalWork) -> list[Parts]:
        """Every row's model as an upload."""
        return [{"update": self._sent(row)} for row in work.W]

    def _sent(self, model: Tensor) -> Dense:
        return Dense(model.numpy(), half=self.precision == "bfloat16")
