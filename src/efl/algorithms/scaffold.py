"""SCAFFOLD (Karimireddy et al. 2020): control variates against client drift.

Client k keeps c_k, its guess of its own gradient, and receives c = Σ p^k c_k, that of everybody. Its steps are
corrected by the difference, y ← y − η(g − c_k + c), so that all clients move in the same direction on average. Then
c_k becomes the mean gradient of the steps just done (option II of the paper), c_k − c + (x − y)/(sη), or the gradient
over all its samples at x (option I). It sends y and the change of c_k.

Both means are weighted by sample counts here; the paper has clients of equal weight. A change of c_k whose reply was
lost is sent again with the next one, so that c stays Σ p^k c_k.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from efl.algorithms.base import LocalWork, Part, Parts, RoundSettings, ServerState, Step, Update, Uploads
from efl.algorithms.components.reduction import weighted_sum
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.settings import Positive
from efl.training.local_work import vector
from efl.wire import Dense


@ALGORITHMS.register("scaffold")
class Scaffold(FedAvg):
    """``server_rate`` is the paper's η_g; ``control`` where c_k comes from, the ``path`` (II) or its ``start`` (I)."""

    search_space: ClassVar[SearchSpace] = {"server_rate": Range(0.3, 3.0)}
    server_rate: Positive = 1.0
    control: Literal["path", "start"] = "path"

    @property
    def parts(self) -> Mapping[str, Part]:
        """The change of c_k."""
        return {"control": Part(Dense)}

    def init(self, w: Tensor) -> ServerState:
        """C = 0."""
        return ServerState(w, {"control": torch.zeros_like(w)})

    def client_state(self, n: int) -> Mapping[str, int]:
        """c_k, and c_k as the server knows it."""
        return {"control": n, "known": n}

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """C, once it is anything."""
        control = server.tensors["control"]
        return {"control": Dense(control.numpy())} if bool(control.any()) else {}

    def local_update(self, work: LocalWork) -> Uploads:
        """Corrected SGD, and the new c_k."""
        own, eta = work.state["control"], work.settings.eta
        known = torch.where(work.delivered[:, None], own, work.state["known"]).cpu()
        correction = -own
        if "control" in work.shared:
            correction += vector(work.shared["control"]).to(work.W.device)
        work.train(Step(drift=correction))
        if self.control == "start":
            renewed, _ = work.full_gradient()
        else:
            renewed = (work.start - work.W) / (work.progress * eta).unsqueeze(1) - correction.cpu()
        work.state |= {"control": renewed, "known": known}
        return {"control": [Dense(change) for change in (renewed - known).numpy()]}

    def weights(self, updates: Sequence[Update], settings: RoundSettings) -> Sequence[float]:
        """Let x ← x + η_g · mean of y − x."""
        return [self.server_rate * weight for weight in super().weights(updates, settings)]

    def server_update(
        self, server: ServerState, updates: Sequence[Update], w_next: Tensor, settings: RoundSettings
    ) -> ServerState:
        """C ← c + Σ p^k Δc_k over those who replied."""
        changes = weighted_sum([update.parts["control"] for update in updates], [update.share for update in updates])
        return server.having(control=server.tensors["control"] + changes)
