"""Work that ended early, scaled to stand for all of it."""

from torch import Tensor

from efl.algorithms.transform import TRANSFORMS, Transform
from efl.training.local_work import LocalWork


@TRANSFORMS.register("complete")
class Complete(Transform):
    """The update of a client that did s of E steps counts E/s times: without bias where gradients change little."""

    def on_client(self, delta: Tensor, work: LocalWork) -> Tensor:
        """The deltas, lengthened; those of E steps stay as they are."""
        return delta * (work.settings.local_steps / work.steps_done.clamp(min=1)).to(delta.dtype).unsqueeze(1)
