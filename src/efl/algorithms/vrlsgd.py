"""VRL-SGD (Liang et al. 2019): local SGD whose clients subtract how their gradients differ from the mean.

Client k keeps Δ_k, the difference between its mean gradient and everybody's, and steps by x ← x − η(g − Δ_k). After a
round, when it knows the mean x̂ of all clients' models,  Δ_k ← Δ_k + (x̂ − x_k)/(ηE), which is its mean step of the
round minus that of the mean. The Δ_k sum to zero, and at the optimum all of g − Δ_k vanish: no client drifts.

The paper has all clients in every round. Here x̂ is the mean of those in the same round, so that what the Δ_k grow by
still sums to zero. A client learns it when it is asked again: it is the model it then gets or, if it sat out rounds,
one that the server has kept for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, RoundSettings, ServerState
from efl.algorithms.components.reduction import vector
from efl.algorithms.fedavg import FedAvg
from efl.wire import Payload

LAST = "last"  # the server's note of the round in which each client was last heard


@dataclass(frozen=True)
class VRLSGD(FedAvg):
    """FedAvg's server, which keeps the models that clients last had a part in; clients track how they differ."""

    def client_state(self, n: int) -> Mapping[str, int]:
        """Δ_k; and of the last round its η, the client's mean step in units of η, and the model it started from."""
        return {"difference": n, "eta": 1, "step": n, "start": n}

    def personal(self, server: ServerState, client: int) -> Payload | None:
        """The model that the client last had a part in, unless there is no later one."""
        last = _last_rounds(server)
        if client not in last or last[client] == max(last.values()):
            return None
        return self._sent(server.tensors[_after(last[client])])

    def local_update(self, work: LocalWork) -> list[Parts]:
        """SGD with g − Δ_k."""
        difference = self._difference(work)
        for active, gradient in work.descent():
            work.W[:active].sub_(gradient - difference[:active], alpha=work.settings.eta)
        parts, moved = self._uploads(work)
        step = -moved / (work.steps_done * work.settings.eta).unsqueeze(1)
        work.state |= {"difference": difference.cpu(), "step": step, "start": work.start.expand_as(step).clone()}
        work.state["eta"] = torch.full((len(step), 1), work.settings.eta)
        return parts

    def _difference(self, work: LocalWork) -> Tensor:
        """Δ_k with the last round taken into account, if the server heard of it."""
        state, at = work.state, work.W.device
        after = torch.stack([work.start if told is None else vector(told).to(at) for told in work.personal])
        everybody = (state["start"] - after) / (self._server_rate * state["eta"] * work.settings.local_steps)
        return torch.where(work.arrived[:, None], state["difference"] + state["step"] - everybody, state["difference"])

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """FedAvg's mean, kept for those who had a part in it until they are asked again."""
        server, mean = super().aggregate(server, contributions, settings)
        if mean is None:
            return server, None
        last = _last_rounds(server) | {contribution.client: settings.round for contribution in contributions}
        models = {**server.tensors, _after(settings.round): vector(mean)}
        kept = {name: models[name] for name in map(_after, set(last.values()))}
        return replace(server, tensors={**kept, LAST: torch.tensor([list(last), list(last.values())])}), mean

    @property
    def _server_rate(self) -> float:
        """How far the server goes along the mean of what clients moved."""
        return 1.0

    def _uploads(self, work: LocalWork) -> tuple[list[Parts], Tensor]:
        """What each row sends, and how far the server will see it moved."""
        return self._whole_models(work), work.W - work.start


def _last_rounds(server: ServerState) -> dict[int, int]:
    """The round in which each client was last heard."""
    clients, rounds = server.tensors[LAST].tolist() if LAST in server.tensors else ([], [])
    return dict(zip(clients, rounds, strict=True))


def _after(round_: int) -> str:
    """The name of the model after a round."""
    return f"after {round_}"
