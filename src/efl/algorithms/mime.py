"""Mime and MimeLite (Karimireddy et al. 2020): clients mimic a central optimiser.

The optimiser's state, here a momentum m, is the server's; clients apply it and leave it as it is:

    y ← y − η((1 − β) g + β m),  and then, at the server,  m ← (1 − β) c + β m

with c the cohort's mean gradient at the server's model x. In Mime, g = ∇f_k(y; ζ) − ∇f_k(x; ζ) + c on a mini-batch ζ;
in MimeLite (preset ``lite``) it is the gradient on the mini-batch alone.

Mime needs two requests per update, for c must be known before anybody steps: in even rounds for ∇f_k(x) over all
samples, in odd ones, in which x is still the same, for y. So one of the paper's rounds is two of ours. MimeLite needs
one request, for both.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field as Constraint
from torch import Tensor

from efl.algorithms.base import LocalWork, Part, Parts, Presets, RoundSettings, ServerState, Update, Uploads
from efl.algorithms.components.reduction import weighted_sum
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.training.local_work import vector
from efl.wire import Dense

LITE: dict[str, Any] = {"correction": False}


@ALGORITHMS.register("mime")
class Mime(FedAvg):
    """``momentum`` is β, 0 for plain SGD; ``correction`` whether steps are corrected by c."""

    scalable: ClassVar[bool] = False
    presets: ClassVar[Presets] = {"lite": LITE}
    search_space: ClassVar[SearchSpace] = {"momentum": Range(0.0, 0.95, log=False)}
    momentum: Annotated[float, Constraint(ge=0, lt=1)] = 0.7
    correction: bool = True

    @property
    def parts(self) -> Mapping[str, Part]:
        """MimeLite's clients send the gradient besides the model; Mime's in its stead, in even rounds."""
        return {} if self.correction else {"gradient": Part(Dense)}

    @property
    def requests_per_update(self) -> int:
        """For ∇f_k(x), and for y."""
        return 2 if self.correction else 1

    def init(self, w: Tensor) -> ServerState:
        """M = c = 0."""
        return ServerState(w, {"momentum": torch.zeros_like(w), "gradient": torch.zeros_like(w)})

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """As much of m and c as clients need for their steps, once they are anything."""
        needed = {"momentum": self.momentum > 0, "gradient": self.correction}
        sent = {name: server.tensors[name] for name, use in needed.items() if use and self.changes_model(settings)}
        return {name: Dense(tensor.numpy()) for name, tensor in sent.items() if bool(tensor.any())}

    def local_update(self, work: LocalWork) -> Uploads:
        """A gradient, or steps of the server's optimiser, or both."""
        if not self.changes_model(work.settings):
            work.W, work.losses = work.full_gradient()  # what travels in this round
            return {}
        self._train(work)
        if self.correction:
            return {}
        gradients, _ = work.full_gradient()
        return {"gradient": [Dense(row) for row in gradients.numpy()]}

    def _train(self, work: LocalWork) -> None:
        """Steps of the server's optimiser."""
        shared = {name: vector(part).to(work.W.device) for name, part in work.shared.items()}
        momentum = shared.get("momentum", torch.zeros_like(work.start))
        shadows = [work.shadow_models()] if "gradient" in shared else []
        for active, gradient in work.gradients(*shadows):
            for rows in shadows:
                gradient = gradient - rows.G[:active] + shared["gradient"]
            work.W[:active].sub_(torch.lerp(gradient, momentum, self.momentum), alpha=work.settings.eta)

    def changes_model(self, settings: RoundSettings) -> bool:
        """Whether clients take steps in this round."""
        return not self.correction or settings.round % 2 == 1

    def server_update(
        self, server: ServerState, updates: Sequence[Update], w_next: Tensor, settings: RoundSettings
    ) -> ServerState:
        """The mean of gradients; and after steps, one of the momentum."""
        weights = self.weights(updates, settings)
        if not self.changes_model(settings):
            return server.having(gradient=weighted_sum([update.delta for update in updates], weights))
        if not self.correction:
            gradient = weighted_sum([update.parts["gradient"] for update in updates], weights)
            server = server.having(gradient=gradient)
        momentum = torch.lerp(server.tensors["gradient"], server.tensors["momentum"], self.momentum)
        return server.having(momentum=momentum)
