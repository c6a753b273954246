"""From samples as they are kept to what a network takes, batch by batch.

Images stay bytes and tokens small integers in memory; only the batch at hand is spread out to 32 or 64 bit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Inputs = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pixels:
    """Bytes as floats, normalised channel by channel: (x/255 − mean) / deviation, for x (…, channels, height, width).

    >>> Pixels(mean=(0.5,), deviation=(0.25,))(torch.tensor([0, 255], dtype=torch.uint8)).tolist()
    [-2.0, 2.0]
    """

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)

    def __call__(self, x: Tensor) -> Tensor:
        """The batch as float32."""
        scale = [1 / (255 * deviation) for deviation in self.deviation]
        shift = [-mean / deviation for mean, deviation in zip(self.mean, self.deviation, strict=True)]
        floats = x.to(torch.float32)
        if len(scale) == 1:
            floats.mul_(scale[0])
            return floats.add_(shift[0]) if shift[0] else floats
        return floats.mul_(torch.tensor(scale).view(-1, 1, 1)).add_(torch.tensor(shift).view(-1, 1, 1))


def inputs_for(dtype: torch.dtype) -> Inputs:
    """What one would expect: bytes are pixels, other whole numbers are tokens, real numbers are float32."""
    if dtype == torch.uint8:
        return Pixels()
    return _as_float32 if dtype.is_floating_point or dtype == torch.bool else as_tokens


def as_tokens(x: Tensor) -> Tensor:
    """Whole numbers, for an embedding."""
    return x.long()


def _as_float32(x: Tensor) -> Tensor:
    return x.float()
