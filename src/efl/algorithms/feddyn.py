"""FedDyn (Acar et al. 2021): a regulariser that moves, so that clients' optima and the global one come to agree.

Client k keeps g_k, the gradient of f_k where it last ended, and minimises f_k(w) − ⟨g_k, w⟩ + α/2 ‖w − w_τ‖². Then
g_k ← g_k − α(w_k − w_τ). The server keeps h ← h − (α/N) Σ (w_k − w_τ) over those who replied, which is the mean of all
g_k, and goes to the mean of the w_k, minus h/α.

The paper's mean over N clients of equal weight is one by sample counts here. A client learns whether its last reply
arrived when it is sampled again; if it did not, g_k is as it was before, so that h stays the mean of the g_k.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from efl.algorithms.base import LocalWork, RoundSettings, ServerState, Step, Update
from efl.algorithms.components.reduction import averaged_increment, delta_of
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.algorithms.transform import Transform
from efl.settings import Positive
from efl.wire import Payload


class MeanGradient(Transform):
    """The server's part: h, by which the next model leaves the mean of the clients' models."""

    strength: Positive = 0.1

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """H = 0."""
        return {"mean_gradient": torch.zeros_like(w)}

    def on_server(
        self, delta: Tensor, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Tensor, ServerState]:
        """H ← h − α Σ p^k (w_k − w_τ); the mean of the w_k, minus h/α."""
        moved = averaged_increment(server.w, [one.delta for one in updates], [one.share for one in updates])
        mean = server.tensors["mean_gradient"] - self.strength * moved
        return delta - mean / self.strength, server.having(mean_gradient=mean)


@ALGORITHMS.register("feddyn")
class FedDyn(FedAvg):
    """``strength`` is the paper's α."""

    search_space: ClassVar[SearchSpace] = {"strength": Range(1e-3, 1.0)}
    strength: Positive = 0.1

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """What FedAvg does with incomplete work, and the server's h."""
        return (*super().default_transforms, MeanGradient(self.strength))

    def client_state(self, n: int) -> Mapping[str, int]:
        """g_k, and what it was before the last round."""
        return {"gradient": n, "before": n}

    def local_step(self, work: LocalWork) -> Step:
        """The pull is taken where the step ends: w ← (w − η(g − g_k) + ηα w_τ) / (1 + ηα)."""
        state, a = work.state, work.settings.eta * self.strength
        state["before"] = torch.where(work.delivered[:, None], state["gradient"], state["before"])
        keep, shift = torch.full_like(work.start, 1 / (1 + a)), work.start * (a / (1 + a))
        return Step(-state["before"], keep, shift)

    def on_encoded(self, work: LocalWork, updates: Sequence[Payload]) -> None:
        """Let g_k ← g_k − α(w_k − w_τ), as far as the server will see it."""
        moved = torch.stack([delta_of(update, work.start) for update in updates])
        work.state["gradient"] = work.state["before"] - self.strength * moved
