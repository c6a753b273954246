"""FedCurv (Shoham et al. 2019): elastic weight consolidation between clients.

Client k minimises f_k + λ Σ_{j≠k} (w − w_j)ᵀ diag(u_j) (w − w_j), where w_j is the model that client j had after the
last round and u_j the diagonal of its Fisher information there. It sends its model and u_k; the server averages the
models and tells everybody U = Σ u_j and Σ u_j w_j. A client that was among them takes its own part out again, which
is why it keeps it.

EFL without compression and reweighting is this with λ/2, but for the client's own part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field as Constraint
from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, RoundSettings, ServerState, UploadTypes
from efl.algorithms.components.fields import full_fields, received, summed
from efl.algorithms.fedavg import FedAvg
from efl.settings import NonNegative
from efl.training.fisher import exact_fisher
from efl.wire import Dense, Field, Payload


@dataclass(frozen=True)
class FedCurv(FedAvg):
    """Elastic weight consolidation.

    curvature
        λ, the strength of the penalty.
    fisher, fisher_samples
        Labels of the ``data`` or labels drawn from the model (``true``), over at most so many samples.
    own
        Whether a client takes its own part out of the penalty (``exclude``), as the paper does.
    """

    curvature: NonNegative = 0.05
    fisher: Literal["empirical", "true"] = "empirical"
    fisher_samples: Annotated[int, Constraint(ge=1)] = 256
    own: Literal["exclude", "include"] = "exclude"

    @property
    def upload_types(self) -> UploadTypes:
        """The model, and the Fisher diagonal there."""
        return {"update": Dense, "field": Field}

    def start(self, w: Tensor) -> ServerState:
        """Nothing pulls yet."""
        return ServerState(w, {name: torch.zeros_like(w) for name in ("fisher", "anchor")})

    def client_state(self, n: int) -> Mapping[str, int]:
        """The client's part of the penalty: u_k and w_k."""
        return {"fisher": n, "anchor": n} if self.own == "exclude" else {}

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """U, and Σ u_j w_j / U as its displacement from the model."""
        fisher, anchor = server.tensors["fisher"], server.tensors["anchor"]
        if not bool(fisher.any()):
            return {}
        return {"field": full_fields(fisher[None], (anchor - server.w)[None], settings.layout)[0]}

    def local_update(self, work: LocalWork) -> list[Parts]:
        """SGD on the loss and the penalty, then u_k where it ended."""
        fisher, pulled = self._penalty(work)
        eta, strength = work.settings.eta, 2 * self.curvature * work.settings.eta
        for active, gradient in work.descent():
            pull = fisher[:active] * work.W[:active] - pulled[:active]
            work.W[:active].sub_(gradient, alpha=eta).sub_(pull, alpha=strength)
        x, y, weights, seeds = work.samples(self.fisher_samples)
        own = exact_fisher(work.rows, x, y, weights, "model" if self.fisher == "true" else "data", seeds)
        if self.own == "exclude":
            work.state |= {"fisher": own, "anchor": work.W.clone()}
        fields = full_fields(own, work.W - work.start, work.settings.layout)
        return [{**model, "field": sent} for model, sent in zip(self._whole_models(work), fields, strict=True)]

    def _penalty(self, work: LocalWork) -> tuple[Tensor, Tensor]:
        """Σ u_j and Σ u_j w_j over the others of the last round, for every row."""
        fisher = pulled = torch.zeros_like(work.W)
        if "field" in work.shared:
            field = received(work.shared["field"], work.start.cpu())
            sums = field.fisher, field.fisher * field.anchor
            fisher, pulled = (total.to(work.W.device).expand_as(work.W) for total in sums)
        if self.own == "exclude":
            among = work.arrived[:, None] & (work.away == 1)
            u = torch.where(among, work.state["fisher"], 0.0)
            fisher, pulled = (fisher - u).clamp_(min=0), pulled - u * work.state["anchor"]
        return fisher, pulled

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """FedAvg's mean; and the sums that make up the penalty."""
        if contributions:
            fields = summed([contribution.parts["field"] for contribution in contributions], server.w)
            server = server.having(fisher=fields["fisher"], anchor=fields["anchor"])
        return super().aggregate(server, contributions, settings)
