"""Updates of bounded length."""

from torch import Tensor

from efl.algorithms.transform import TRANSFORMS, Transform
from efl.settings import Positive
from efl.training.local_work import LocalWork


@TRANSFORMS.register("clip_by_norm")
class ClipByNorm(Transform):
    """Shorten every update to at most ``norm``, in the Euclidean norm (Pascanu et al. 2013).

    It acts on what is about to be encoded, residual included, so that no upload is longer, whatever the codec kept
    back before.
    """

    norm: Positive = 1.0

    def on_sent(self, total: Tensor, work: LocalWork) -> Tensor:
        """Rows longer than the bound are scaled down to it; the others stay as they are."""
        return shortened(total, self.norm)


def shortened(rows: Tensor, norm: float) -> Tensor:
    """Rows (C, n) longer than ``norm`` scaled down to it; the others as they are."""
    lengths = rows.double().norm(dim=1, keepdim=True)
    factors: Tensor = (norm / lengths.clamp(min=norm)).float()
    return rows * factors
