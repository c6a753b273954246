"""Sparse ternary compression (Sattler et al. 2019): FedAvg with short messages both ways.

Client k adds what it moved to its residual, Δ^k = R^k + w_E − w_0, sends ST(Δ^k), its largest entries rounded to ±μ,
and keeps the rest: R^k = Δ^k − ST(Δ^k). The server does the same with the mean. With both densities 1 it is FedAvg.

A client that finds its last message lost puts it back into its residual.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, RoundSettings, ServerState, UploadTypes
from efl.algorithms.components.reduction import averaged_increment
from efl.algorithms.compression.ternary import put_back, sparsify_ternary, subtract
from efl.algorithms.fedavg import FedAvg
from efl.settings import Density
from efl.wire import Dense, Payload, Ternary


@dataclass(frozen=True)
class STC(FedAvg):
    """The share of entries a message keeps, per direction; the paper tries 1/25, 1/100 and 1/400."""

    density_up: Density = 0.01
    density_down: Density = 0.01

    @property
    def upload_types(self) -> UploadTypes:
        """A sparse ternary change, or the whole model."""
        return {"update": Ternary if self.density_up < 1 else Dense}

    def start(self, w: Tensor) -> ServerState:
        """R = 0."""
        return ServerState(w, {"residual": torch.zeros_like(w)} if self.density_down < 1 else {})

    def client_state(self, n: int) -> Mapping[str, int]:
        """R^k."""
        return {"residual": n} if self.density_up < 1 else {}

    @property
    def remembers(self) -> Sequence[str]:
        """What was sent, to be put back if it is lost."""
        return ("update",) if self.density_up < 1 else ()

    def local_update(self, work: LocalWork) -> list[Parts]:
        """SGD, then compress."""
        models = super().local_update(work)
        if self.density_up == 1:
            return models
        residual = work.state["residual"]
        for row, lost in zip(residual, work.lost, strict=True):
            if lost is not None and isinstance(update := lost.get("update"), Ternary):
                put_back(row, update)
        sent = sparsify_ternary(residual.add_(work.W - work.start), self.density_up, work.settings.layout)
        work.state["residual"] = subtract(residual, sent)
        return [{"update": update} for update in sent]

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """Δ = R + mean of ST(Δ^k);  w changes by ST(Δ);  R = Δ − ST(Δ)."""
        if not contributions or self.density_down == 1:
            return super().aggregate(server, contributions, settings)
        updates = [contribution.parts["update"] for contribution in contributions]
        total = server.tensors["residual"] + averaged_increment(server.w, updates, self._weights(contributions))
        (step,) = sent = sparsify_ternary(total[None], self.density_down, settings.layout)
        return server.having(residual=subtract(total[None], sent)[0]), step
