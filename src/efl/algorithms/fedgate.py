"""FedGATE and FedCOMGATE (Haddadpour et al. 2021): local gradient tracking, with compressed uploads.

Clients correct their steps by δ_k, as in VRL-SGD. They send what they moved, in the preset ``compressed``
(FedCOMGATE) rounded to a byte per parameter, the server goes ``server_rate`` (γ) times the mean of it, and δ_k grows by
the difference between what the client sent, as the server saw it, and that mean. Without compression and with γ = 1
it is VRL-SGD.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from efl.algorithms.base import Presets, RoundSettings, Update
from efl.algorithms.compression.codec import Codec
from efl.algorithms.compression.quantise import EightBit
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.algorithms.vrlsgd import VRLSGD
from efl.settings import Positive

COMPRESSED: dict[str, Any] = {"compression": "byte"}


@ALGORITHMS.register("fedgate")
class FedGATE(VRLSGD):
    """``server_rate`` is the paper's γ; ``compression`` of uploads: ``none``, or a ``byte`` per parameter."""

    presets: ClassVar[Presets] = {"compressed": COMPRESSED}
    search_space: ClassVar[SearchSpace] = {"server_rate": Range(0.3, 3.0)}
    server_rate: Positive = 1.0
    compression: Literal["none", "byte"] = "none"

    @property
    def default_codec(self) -> Codec:
        """A model, or a rounded change of it."""
        return super().default_codec if self.compression == "none" else EightBit()

    @property
    def _server_rate(self) -> float:
        return self.server_rate

    def weights(self, updates: Sequence[Update], settings: RoundSettings) -> Sequence[float]:
        """γ times FedAvg's."""
        return [self.server_rate * weight for weight in super().weights(updates, settings)]
