"""APFL (Deng et al. 2020): every client mixes the global model with one of its own.

Client k keeps a personal model v_k. In a round it trains its copy w of the global one as FedAvg does, and beside it
v_k for what the mixture v̄ = α_k v_k + (1 − α_k) w makes of it:  v_k ← v_k − η α_k ∇f_k(v̄). Only w is sent; the
client uses v̄. With ``adaptive``, α_k takes a gradient step too, once per round:  α_k ← α_k − η ⟨v_k − w, ∇f_k(v̄)⟩,
kept within [0, 1].
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from efl.algorithms.base import LocalWork, Uploads
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.settings import Probability


@ALGORITHMS.register("apfl")
class APFL(FedAvg):
    """FedAvg's server; ``mixture`` is α_k at first."""

    uses_late = True
    search_space: ClassVar[SearchSpace] = {"mixture": Range(0.05, 0.95, log=False)}
    mixture: Probability = 0.5
    adaptive: bool = True

    @property
    def personalised(self) -> bool:
        """The mixtures v̄."""
        return True

    def client_state(self, n: int) -> Mapping[str, int]:
        """v_k and α_k; the client knows nothing of either before it is sampled for the first time."""
        return {"personal": n, "mixture": 1}

    def local_update(self, work: LocalWork) -> Uploads:
        """SGD for the global model and for the personal one, on the same mini-batches."""
        new, eta = work.new[:, None], work.settings.eta
        personal = torch.where(new, work.start, work.state["personal"])
        share = torch.where(new, self.mixture, work.state["mixture"])
        mixed = work.shadow_models()
        mixed.W.copy_(torch.lerp(work.W, personal, share))
        for step, (active, gradient) in enumerate(work.gradients(mixed)):
            w, v, a, slope = work.W[:active], personal[:active], share[:active], mixed.G[:active]
            if step == 0 and self.adaptive:
                share = (share - eta * _products(personal - work.W, mixed.G)).clamp_(0, 1)
            w.sub_(gradient, alpha=eta)
            v.sub_(slope * a, alpha=eta)
            mixed.W[:active] = torch.lerp(w, v, share[:active])
        work.state |= {"personal": personal.cpu(), "mixture": share.cpu()}
        work.personalised_models = mixed.W
        return {}


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Inner products row by row (C, 1), each by itself, so that it does not depend on the others."""
    return torch.stack([torch.dot(a, b) for a, b in zip(left, right, strict=True)]).unsqueeze(1)
