"""Late work counts less: the model has moved on since it was begun."""

from collections.abc import Sequence

from efl.algorithms.state import Update
from efl.algorithms.transform import TRANSFORMS, Transform
from efl.settings import NonNegative


@TRANSFORMS.register("staleness_discount")
class StalenessDiscount(Transform):
    """An update that started τ rounds ago counts (1 + τ)^-a of itself (FedBuff, Nguyen et al. 2022).

    Asynchronous rounds have it unless another is given. Weights do not sum to 1 then: a round of late updates makes a
    shorter step.

    Attributes:
        exponent: a; 0 has late updates count in full.
    """

    exponent: NonNegative = 0.5

    def weigh(self, weights: Sequence[float], updates: Sequence[Update]) -> Sequence[float]:
        """Less for what is late."""
        return [
            weight * (1 + update.staleness) ** -self.exponent for weight, update in zip(weights, updates, strict=True)
        ]
