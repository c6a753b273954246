"""FedGATE and FedCOMGATE (Haddadpour et al. 2021): local gradient tracking, with compressed uploads.

Clients correct their steps by δ_k, as in VRL-SGD. They send what they moved, in the preset ``compressed``
(FedCOMGATE) rounded to a byte a parameter, the server goes ``server_rate`` (γ) times the mean of it, and δ_k grows by
the difference between what the client sent, as the server saw it, and that mean. Without compression and with γ = 1
it is VRL-SGD.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, UploadTypes
from efl.algorithms.compression.quantise import quantise
from efl.algorithms.vrlsgd import VRLSGD
from efl.settings import Positive
from efl.wire import Dense, Quantised

COMPRESSED: Mapping[str, Any] = {"compression": "byte"}


@dataclass(frozen=True)
class FedGATE(VRLSGD):
    """``server_rate`` is the paper's γ; ``compression`` of uploads: ``none``, or a ``byte`` a parameter."""

    server_rate: Positive = 1.0
    compression: Literal["none", "byte"] = "none"

    @property
    def upload_types(self) -> UploadTypes:
        """A model, or a rounded change of it."""
        return {"update": Dense if self.compression == "none" else Quantised}

    @property
    def _server_rate(self) -> float:
        return self.server_rate

    def _uploads(self, work: LocalWork) -> tuple[list[Parts], Tensor]:
        if self.compression == "none":
            return super()._uploads(work)
        sent = quantise(work.W - work.start, work.settings.layout)
        return [{"update": update} for update in sent], torch.stack([torch.from_numpy(one.values) for one in sent])

    def _weights(self, contributions: Sequence[Contribution]) -> list[float]:
        return [self.server_rate * weight for weight in super()._weights(contributions)]
