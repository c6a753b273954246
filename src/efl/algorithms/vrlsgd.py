"""VRL-SGD (Liang et al. 2019): local SGD whose clients subtract how their gradients differ from the mean.

Client k keeps Δ_k, the difference between its mean gradient and everybody's, and steps by x ← x − η(g − Δ_k). After a
round, when it knows the mean x̂ of all clients' models,  Δ_k ← Δ_k + (x̂ − x_k)/(ηE), which is its mean step of the
round minus that of the mean. The Δ_k sum to zero, and at the optimum all of g − Δ_k vanish: no client drifts.

The paper has all clients in every round. Here x̂ is the mean of those in the same round, so that what the Δ_k grow by
still sums to zero. A client learns it when it is sampled again: it is the model it then gets or, if it sat out rounds,
one that the server has kept for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from efl.algorithms.base import LocalWork, RoundSettings, ServerState, Step, Update, Uploads
from efl.algorithms.components.reduction import delta_of
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.wire import Dense, Payload

LAST = "last"  # the server's note of the round in which each client last replied
AFTER = "after "  # begins the name of a model that is kept


@ALGORITHMS.register("vrlsgd")
class VRLSGD(FedAvg):
    """FedAvg's server, which keeps the models that clients last had a part in; clients track how they differ."""

    def client_state(self, n: int) -> Mapping[str, int]:
        """Δ_k; and of the last round its η, the client's mean step in units of η, and the model it started from."""
        return {"difference": n, "eta": 1, "step": n, "start": n}

    def broadcast_to(self, server: ServerState, client: int) -> Payload | None:
        """The model that the client last had a part in, unless there is no later one."""
        last = _last_rounds(server)
        if client not in last or last[client] == max(last.values()):
            return None
        return self.codec.whole_models(server.tensors[_after(last[client])].unsqueeze(0))[0]

    def local_update(self, work: LocalWork) -> Uploads:
        """SGD with g − Δ_k."""
        difference = self._difference(work)
        work.train(Step(drift=-difference))
        work.state |= {"difference": difference.cpu(), "start": work.start.expand_as(work.W).clone()}
        work.state["eta"] = torch.full((len(work.W), 1), work.settings.eta)
        return {}

    def on_encoded(self, work: LocalWork, updates: Sequence[Payload]) -> None:
        """The mean step of the round, as far as the server will see it."""
        whole = work.untouched and all(isinstance(update, Dense) for update in updates)
        moved = work.displacement if whole else torch.stack([delta_of(update, work.start) for update in updates])
        work.state["step"] = -moved / (self._counted_steps(work) * work.settings.eta).unsqueeze(1)

    def _counted_steps(self, work: LocalWork) -> Tensor:
        """How many steps an update stands for: those of the client or, where it was scaled, all."""
        done = work.progress
        return torch.full_like(done, work.settings.progress) if self.incomplete == "use" else done

    def _difference(self, work: LocalWork) -> Tensor:
        """Δ_k with the last round taken into account, if it reached the server."""
        state, after = work.state, work.personal_models()
        everybody = (state["start"] - after) / (self._server_rate * state["eta"] * work.settings.progress)
        renewed = state["difference"] + state["step"] - everybody
        return torch.where(work.delivered[:, None], renewed, state["difference"])

    def server_update(
        self, server: ServerState, updates: Sequence[Update], w_next: Tensor, settings: RoundSettings
    ) -> ServerState:
        """The new model is kept for those who had a part in it until they are sampled again."""
        last = _last_rounds(server) | {update.client: settings.round for update in updates}
        models = {**server.tensors, _after(settings.round): w_next.clone()}
        others = {name: kept for name, kept in server.tensors.items() if not name.startswith(AFTER)}
        kept = others | {name: models[name] for name in map(_after, set(last.values()))}
        return replace(server, tensors={**kept, LAST: torch.tensor([list(last), list(last.values())])})

    @property
    def _server_rate(self) -> float:
        """How far the server goes along the mean of what clients moved."""
        return 1.0


def _last_rounds(server: ServerState) -> dict[int, int]:
    """The round in which each client last replied."""
    clients, rounds = server.tensors[LAST].tolist() if LAST in server.tensors else ([], [])
    return dict(zip(clients, rounds, strict=True))


def _after(round_: int) -> str:
    """The name of the model after a round."""
    return f"{AFTER}{round_}"
