"""FedAvg (McMahan et al. 2017): average the models of the clients that finished.

Clients run plain SGD from the server's model. The server averages them weighted by their sample counts. A client
that does not complete its E steps before the round ends is dropped, as in the paper. All of that is the default of an
`Algorithm`.
"""

from typing import Literal

from efl.algorithms.base import Algorithm
from efl.algorithms.compression.codec import Codec, Uncompressed
from efl.algorithms.registry import ALGORITHMS


@ALGORITHMS.register("fedavg")
class FedAvg(Algorithm):
    """Federated averaging; ``precision`` is how models travel, both ways."""

    precision: Literal["float32", "bfloat16"] = "float32"

    @property
    def default_codec(self) -> Codec:
        """Whole models."""
        return Uncompressed(self.precision)
