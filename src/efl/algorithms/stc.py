"""Sparse ternary compression (Sattler et al. 2019): FedAvg with short messages both ways.

Client k adds what it moved to its residual, sends ST of the sum, its largest entries rounded to ±μ, and keeps the rest.
The server does the same with the mean. With both densities 1 it is FedAvg. A client that finds its last message lost
puts it back into its residual.
"""

from efl.algorithms.compression.codec import Codec
from efl.algorithms.compression.error_feedback import ErrorFeedback
from efl.algorithms.compression.ternary import SparseTernary
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.settings import Density


@ALGORITHMS.register("stc")
class STC(FedAvg):
    """The share of entries a message keeps, per direction; the paper tries 1/25, 1/100 and 1/400."""

    density_up: Density = 0.01
    density_down: Density = 0.01

    @property
    def default_codec(self) -> Codec:
        """ST with residuals."""
        if self.density_up == self.density_down == 1:
            return super().default_codec
        return ErrorFeedback(SparseTernary(self.density_up, self.density_down), resend=self.density_up < 1)
