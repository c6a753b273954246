"""Mime and MimeLite (Karimireddy et al. 2020): clients mimic a central optimiser.

The optimiser's state, here a momentum m, is the server's; clients apply it and leave it as it is: y ← y − η((1 − β)g
+ βm). In Mime, g = ∇f_k(y; ζ) − ∇f_k(x; ζ) + c on a mini-batch ζ, with c the mean gradient at the server's model x;
in MimeLite (preset ``lite``) it is the mini-batch gradient alone. A client sends y and ∇f_k(x) over all its samples;
the server averages both, and lets m ← (1 − β)c + βm.

The paper's clients are asked twice a round, first for ∇f_k(x). Here the c of a round comes from the round before: the
fixed point is the same. In the first round, where there is no c, clients take plain steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field as Constraint
from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, RoundSettings, ServerState, UploadTypes
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.parts.averaging import vector, weighted_sum
from efl.wire import Dense, Payload

LITE: Mapping[str, Any] = {"correction": False}


@dataclass(frozen=True)
class Mime(FedAvg):
    """``momentum`` is β, 0 for plain SGD; ``correction`` whether steps are corrected by c."""

    momentum: Annotated[float, Constraint(ge=0, lt=1)] = 0.9
    correction: bool = True

    @property
    def upload_types(self) -> UploadTypes:
        """The model, and the gradient over all samples."""
        return {"update": Dense, "gradient": Dense}

    def start(self, w: Tensor) -> ServerState:
        """M = c = 0."""
        return ServerState(w, {"momentum": torch.zeros_like(w), "gradient": torch.zeros_like(w)})

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """As much of m and c as clients need, once they are anything."""
        needed = {"momentum": self.momentum > 0, "gradient": self.correction}
        told = {name: server.tensors[name] for name, wanted in needed.items() if wanted}
        return {name: Dense(tensor.numpy()) for name, tensor in told.items() if bool(tensor.any())}

    def local_update(self, work: LocalWork) -> list[Parts]:
        """Steps of the server's optimiser."""
        told = {name: vector(part) for name, part in work.shared.items()}
        eta, momentum = work.settings.eta, told.get("momentum", torch.zeros_like(work.start))
        there = [work.beside()] if "gradient" in told else []
        for active, gradient in work.descent(*there):
            for rows in there:
                gradient = gradient - rows.G[:active] + told["gradient"]
            work.W[:active].sub_(torch.lerp(gradient, momentum, self.momentum), alpha=eta)
        gradients = work.full_gradient().numpy()
        return [
            {**parts, "gradient": Dense(row)} for parts, row in zip(self._whole_models(work), gradients, strict=True)
        ]

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """Means of models and gradients, and a step of the momentum."""
        server, step = super().aggregate(server, contributions, settings)
        if not contributions:
            return server, step
        gradients = [contribution.parts["gradient"] for contribution in contributions]
        gradient = weighted_sum(gradients, self._weights(contributions))
        momentum = torch.lerp(gradient, server.tensors["momentum"], self.momentum)
        return server.having(gradient=gradient, momentum=momentum), step
