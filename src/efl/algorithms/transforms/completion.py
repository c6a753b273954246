"""Work that ended early, scaled to stand for all of it."""

from torch import Tensor

from efl.algorithms.transform import TRANSFORMS, Transform
from efl.training.local_work import LocalWork


@TRANSFORMS.register("complete")
class Complete(Transform):
    """The update of a client that did s of E steps counts a_E/a_s times: without bias where gradients change little.

    That is E/s, but for momentum, whose later steps are longer (`efl.training.optimisers`).
    """

    def on_client(self, delta: Tensor, work: LocalWork) -> Tensor:
        """The deltas, lengthened; those of E steps stay as they are."""
        return delta * work.completion.to(delta.dtype).unsqueeze(1)
