"""SCAFFOLD (Karimireddy et al. 2020): control variates against client drift.

Client k keeps c_k, its guess of its own gradient, and is told c = Σ p^k c_k, that of everybody. Its steps are
corrected by the difference, y ← y − η(g − c_k + c), so that all clients move in the same direction on average. Then
c_k becomes the mean gradient of the steps just done (option II of the paper), c_k − c + (x − y)/(sη), or the gradient
over all its samples at x (option I). It sends y and the change of c_k.

Both means are weighted by sample counts here; the paper has clients of equal weight. A change of c_k whose reply was
lost is sent again with the next one, so that c stays Σ p^k c_k.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, RoundSettings, ServerState, UploadTypes
from efl.algorithms.components.reduction import vector, weighted_sum
from efl.algorithms.fedavg import FedAvg
from efl.settings import Positive
from efl.wire import Dense, Payload


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """``server_rate`` is the paper's η_g; ``control`` where c_k comes from, the ``path`` (II) or its ``start`` (I)."""

    server_rate: Positive = 1.0
    control: Literal["path", "start"] = "path"

    @property
    def upload_types(self) -> UploadTypes:
        """The model, and the change of c_k."""
        return {"update": Dense, "control": Dense}

    def start(self, w: Tensor) -> ServerState:
        """C = 0."""
        return ServerState(w, {"control": torch.zeros_like(w)})

    def client_state(self, n: int) -> Mapping[str, int]:
        """c_k, and c_k as the server knows it."""
        return {"control": n, "told": n}

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """C, once it is anything."""
        control = server.tensors["control"]
        return {"control": Dense(control.numpy())} if bool(control.any()) else {}

    def local_update(self, work: LocalWork) -> list[Parts]:
        """Corrected SGD, and the new c_k."""
        own, eta = work.state["control"], work.settings.eta
        told = torch.where(work.arrived[:, None], own, work.state["told"])
        correction = -own
        if "control" in work.shared:
            correction += vector(work.shared["control"]).to(work.W.device)
        for active, gradient in work.descent():
            work.W[:active].sub_(gradient + correction[:active], alpha=eta)
        if self.control == "start":
            renewed, _ = work.full_gradient()
        else:
            renewed = (work.start - work.W) / (work.steps_done * eta).unsqueeze(1) - correction.cpu()
        work.state |= {"control": renewed, "told": told.cpu()}
        changes = (renewed - work.state["told"]).numpy()
        return [
            {**parts, "control": Dense(change)} for parts, change in zip(self._whole_models(work), changes, strict=True)
        ]

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """Let x ← x + η_g · mean of y − x, and c ← c + Σ p^k Δc_k over those who answered."""
        server, step = super().aggregate(server, contributions, settings)
        if not contributions:
            return server, step
        shares = [contribution.share for contribution in contributions]
        changes = weighted_sum([contribution.parts["control"] for contribution in contributions], shares)
        return server.having(control=server.tensors["control"] + changes), step

    def _weights(self, contributions: Sequence[Contribution]) -> list[float]:
        return [self.server_rate * weight for weight in super()._weights(contributions)]
