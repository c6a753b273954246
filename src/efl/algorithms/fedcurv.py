"""FedCurv (Shoham et al. 2019): elastic weight consolidation between clients.

Client k minimises f_k + λ Σ_{j≠k} (w − w_j)ᵀ diag(u_j) (w − w_j), where w_j is the model that client j had after the
last round and u_j the diagonal of its Fisher information there. It sends its model and u_k; the server averages the
models and sends everybody U = Σ u_j and Σ u_j w_j. A client that was among them takes its own part out again, which
is why it keeps it.

EFL without compression and reweighting is this with λ/2, but for the client's own part.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from efl.algorithms.base import LocalWork, Part, Parts, RoundSettings, ServerState, Step, Update, Uploads
from efl.algorithms.components.fields import full_fields, received, summed
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.settings import Count, NonNegative
from efl.wire import Field


@ALGORITHMS.register("fedcurv")
class FedCurv(FedAvg):
    """Elastic weight consolidation.

    Attributes:
        curvature: λ, the strength of the penalty.
        fisher: Labels of the data (``empirical``) or labels drawn from the model (``true``).
        fisher_samples: Over at most so many samples.
        own: Whether a client takes its own part out of the penalty (``exclude``), as the paper does.
    """

    scalable: ClassVar[bool] = False
    search_space: ClassVar[SearchSpace] = {"curvature": Range(1e-3, 1.0)}
    curvature: NonNegative = 0.05
    fisher: Literal["empirical", "true"] = "empirical"
    fisher_samples: Count = 256
    own: Literal["exclude", "include"] = "exclude"

    @property
    def parts(self) -> Mapping[str, Part]:
        """The Fisher diagonal at the model."""
        return {"field": Part(Field, kind="field")}

    def init(self, w: Tensor) -> ServerState:
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

    def local_step(self, work: LocalWork) -> Step:
        """On the loss and the penalty: w ← w − ηg − 2ηλ(U⊙w − Σ u_j w_j), over the others of the last round."""
        if "field" not in work.shared:
            return Step()
        field = received(work.shared["field"], work.start.cpu())
        fisher, pulled = (total.to(work.W.device) for total in (field.fisher, field.fisher * field.anchor))
        if self.own == "exclude":
            among = work.delivered[:, None] & (work.rounds_since_upload == 1)
            u = torch.where(among, work.state["fisher"], 0.0)
            fisher, pulled = (fisher - u).clamp_(min=0), pulled - u * work.state["anchor"]
        strength = 2 * self.curvature * work.settings.eta
        return Step(keep=1 - strength * fisher, shift=strength * pulled, explicit=True)

    def local_update(self, work: LocalWork) -> Uploads:
        """Train, then u_k where it ended."""
        work.train(self.local_step(work))
        own = work.fisher("model" if self.fisher == "true" else "data", self.fisher_samples)
        if self.own == "exclude":
            work.state |= {"fisher": own, "anchor": work.W.clone()}
        return {"field": full_fields(own, work.displacement, work.settings.layout)}

    def server_update(
        self, server: ServerState, updates: Sequence[Update], w_next: Tensor, settings: RoundSettings
    ) -> ServerState:
        """The sums that make up the penalty."""
        fields = summed([update.parts["field"] for update in updates], server.w)
        return server.having(fisher=fields["fisher"], anchor=fields["anchor"])
