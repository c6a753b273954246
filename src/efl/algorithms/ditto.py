"""Ditto (Li et al. 2021): every client has a model of its own, held near the global one.

The global model is trained as FedAvg does. Beside it client k trains v_k on f_k(v) + λ/2 ‖v − w_τ‖², from where it
was, on the same mini-batches:  v_k ← v_k − η(∇f_k(v_k) + λ(v_k − w_τ)). Only the global model is sent; the client uses
v_k, which starts from the first model the client receives.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch

from efl.algorithms.base import LocalWork, Uploads
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.settings import NonNegative


@ALGORITHMS.register("ditto")
class Ditto(FedAvg):
    """FedAvg's server; ``proximity`` is the paper's λ: 0 trains every client alone, much gives the global model."""

    uses_late = True
    search_space: ClassVar[SearchSpace] = {"proximity": Range(1e-3, 3.0)}
    proximity: NonNegative = 0.1

    @property
    def personalised(self) -> bool:
        """The v_k."""
        return True

    def client_state(self, n: int) -> Mapping[str, int]:
        """v_k."""
        return {"personal": n}

    def local_update(self, work: LocalWork) -> Uploads:
        """SGD for the global model and for the client's own, on the same mini-batches."""
        eta, own = work.settings.eta, work.shadow_models()
        own.W.copy_(torch.where(work.new[:, None], work.start, work.state["personal"]))
        for active, gradient in work.gradients(own):
            v = own.W[:active]
            own.G[:active].add_(v - work.start, alpha=self.proximity)
            v.sub_(own.G[:active], alpha=eta)
            work.W[:active].sub_(gradient, alpha=eta)
        work.state["personal"] = own.W.cpu()
        work.personalised_models = work.state["personal"]
        return {}
