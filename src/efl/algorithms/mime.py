"""Mime and MimeLite (Karimireddy et al. 2020): clients mimic a central optimiser.

The optimiser's state, here a momentum m, is the server's; clients apply it and leave it as it is:

    y ← y − η((1 − β) g + β m),  and then, at the server,  m ← (1 − β) c + β m

with c the cohort's mean gradient at the server's model x. In Mime, g = ∇f_k(y; ζ) − ∇f_k(x; ζ) + c on a mini-batch ζ;
in MimeLite (preset ``lite``) it is the gradient on the mini-batch alone.

Mime asks a cohort twice, for c must be known before anybody steps: in even rounds for ∇f_k(x) over all samples, in odd
ones, in which x is still the same, for y. So one of the paper's rounds is two of ours. MimeLite asks once, for both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field as Constraint
from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, RoundSettings, ServerState, UploadTypes
from efl.algorithms.components.reduction import vector, weighted_sum
from efl.algorithms.fedavg import FedAvg
from efl.wire import Dense, Payload

LITE: Mapping[str, Any] = {"correction": False}


@dataclass(frozen=True)
class Mime(FedAvg):
    """``momentum`` is β, 0 for plain SGD; ``correction`` whether steps are corrected by c."""

    momentum: Annotated[float, Constraint(ge=0, lt=1)] = 0.7
    correction: bool = True

    @property
    def upload_types(self) -> UploadTypes:
        """A gradient, then a model; MimeLite's clients send both at once."""
        return {"update": Dense} if self.correction else {"update": Dense, "gradient": Dense}

    @property
    def exchanges(self) -> int:
        """For ∇f_k(x), and for y."""
        return 2 if self.correction else 1

    def start(self, w: Tensor) -> ServerState:
        """M = c = 0."""
        return ServerState(w, {"momentum": torch.zeros_like(w), "gradient": torch.zeros_like(w)})

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """As much of m and c as clients need for their steps, once they are anything."""
        needed = {"momentum": self.momentum > 0, "gradient": self.correction}
        told = {name: server.tensors[name] for name, wanted in needed.items() if wanted and self._steps(settings)}
        return {name: Dense(tensor.numpy()) for name, tensor in told.items() if bool(tensor.any())}

    def local_update(self, work: LocalWork) -> list[Parts]:
        """A gradient, or steps of the server's optimiser, or both."""
        if not self._steps(work.settings):
            gradients, work.losses = work.full_gradient()
            return [{"update": Dense(row)} for row in gradients.numpy()]
        told = {name: vector(part).to(work.W.device) for name, part in work.shared.items()}
        eta, momentum = work.settings.eta, told.get("momentum", torch.zeros_like(work.start))
        there = [work.beside()] if "gradient" in told else []
        for active, gradient in work.descent(*there):
            for rows in there:
                gradient = gradient - rows.G[:active] + told["gradient"]
            work.W[:active].sub_(torch.lerp(gradient, momentum, self.momentum), alpha=eta)
        models = self._whole_models(work)
        if self.correction:
            return models
        gradients, _ = work.full_gradient()
        return [{**model, "gradient": Dense(row)} for model, row in zip(models, gradients.numpy(), strict=True)]

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """The mean of gradients; the mean of models, and a step of the momentum."""
        if not contributions:
            return server, None
        weights = self._weights(contributions)
        if not self._steps(settings):
            return server.having(gradient=weighted_sum([c.parts["update"] for c in contributions], weights)), None
        if not self.correction:
            server = server.having(gradient=weighted_sum([c.parts["gradient"] for c in contributions], weights))
        momentum = torch.lerp(server.tensors["gradient"], server.tensors["momentum"], self.momentum)
        return super().aggregate(server.having(momentum=momentum), contributions, settings)

    def _steps(self, settings: RoundSettings) -> bool:
        """Whether clients take steps in this round."""
        return not self.correction or settings.round % 2 == 1
