"""FedAvg (McMahan et al. 2017): average the models of the clients that finished.

Clients run plain SGD from the server's model. The server averages them weighted by their sample counts. A client
that does not complete its E steps before the round ends is dropped, as in the paper, or on request its update is scaled
by E/s, so that it stands for E steps. All but that is the default of an `Algorithm`.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from efl.algorithms.base import Algorithm
from efl.algorithms.compression.codec import Codec, Uncompressed
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.transform import Transform
from efl.algorithms.transforms.completion import Complete
from efl.errors import UserError


@ALGORITHMS.register("fedavg")
class FedAvg(Algorithm):
    """Federated averaging.

    Attributes:
        precision: How models travel, both ways.
        incomplete: Whether clients that end early are dropped, or what they did is used.
    """

    precision: Literal["float32", "bfloat16"] = "float32"
    incomplete: Literal["drop", "use"] = "drop"
    scalable: ClassVar[bool] = True  # whether E/s times an update stands for more steps

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.incomplete == "use" and not self.scalable:
            raise UserError(f"incomplete: what {type(self).__name__} uploads cannot be scaled; leave it at 'drop'")

    @property
    def uses_incomplete(self) -> bool:
        """On request."""
        return self.incomplete == "use"

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """What scales them."""
        return (Complete(),) if self.incomplete == "use" else ()

    @property
    def default_codec(self) -> Codec:
        """Whole models."""
        return Uncompressed(self.precision)
