"""VRL-SGD (Liang et al. 2019): local SGD whose clients subtract how their gradients differ from the mean.

Client k keeps Δ_k, the difference between its mean gradient and everybody's, and steps by x ← x − η(g − Δ_k). After a
round, when it knows the mean x̂ of all clients' models,  Δ_k ← Δ_k + (x̂ − x_k)/(ηE), which is its mean step of the
round minus that of the mean. The Δ_k sum to zero, and at the optimum all of g − Δ_k vanish: no client drifts.

The paper has all clients in every round. Here a client learns x̂ when it is asked again; if it sat out rounds, what
the model moved in a round is taken to be its mean over those.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from efl.algorithms.base import LocalWork, Parts
from efl.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class VRLSGD(FedAvg):
    """FedAvg's server; clients track how they differ."""

    def client_state(self, n: int) -> Mapping[str, int]:
        """Δ_k; and of the last round, the client's mean step (in units of η) and the model it started from."""
        return {"difference": n, "step": n, "start": n}

    def local_update(self, work: LocalWork) -> list[Parts]:
        """SGD with g − Δ_k."""
        difference = self._difference(work)
        for active, gradient in work.descent():
            work.W[:active].sub_(gradient - difference[:active], alpha=work.settings.eta)
        parts, moved = self._uploads(work)
        step = -moved / (work.steps_done * work.settings.eta).unsqueeze(1)
        work.state |= {"difference": difference.cpu(), "step": step, "start": work.start.expand_as(step).clone()}
        return parts

    def _difference(self, work: LocalWork) -> Tensor:
        """Δ_k with the last round taken into account, if the server heard of it."""
        state, settings = work.state, work.settings
        rounds = work.away * (self._server_rate * settings.eta * settings.local_steps)
        everybody = (state["start"] - work.start) / rounds
        return torch.where(work.arrived[:, None], state["difference"] + state["step"] - everybody, state["difference"])

    @property
    def _server_rate(self) -> float:
        """How far the server goes along the mean of what clients moved."""
        return 1.0

    def _uploads(self, work: LocalWork) -> tuple[list[Parts], Tensor]:
        """What each row sends, and how far the server will see it moved."""
        return self._whole_models(work), work.W - work.start
