"""ResNet50 (He et al. 2015) for small images, with group normalisation.

BatchNorm's statistics are those of one client's few classes and average badly over unlike clients (Hsieh et al. 2020),
so GroupNorm takes its place. Images of 28 × 28 or 32 × 32 would vanish in the ImageNet stem (7 × 7 stride 2, pooling):
a 3 × 3 convolution stands there instead.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from efl.models.input_spec import Task
from efl.models.registry import NETWORKS

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width and number of blocks
EXPANSION = 4
GROUPS = 32
SMALL = ((32, 1), (64, 1), (128, 1))


@NETWORKS.register("resnet50")
def resnet50(task: Task, stages: Sequence[tuple[int, int]] = STAGES, stride: int = 1) -> nn.Module:
    """A stem, 16 bottleneck blocks in four stages, global average pooling, a linear layer: 23.5 million parameters."""
    channels, _, _ = task.image("resnet50", 8)
    stem = nn.Conv2d(channels, 64, 3, stride, padding=1, bias=False)
    layers: list[nn.Module] = [stem, nn.GroupNorm(GROUPS, 64), nn.ReLU()]
    inputs = 64
    for stage, (width, blocks) in enumerate(stages):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride=2 if stage > 0 and block == 0 else 1))
            inputs = EXPANSION * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, task.classes)]
    network = nn.Sequential(*layers)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


@NETWORKS.register("resnet_small")
def resnet_small(task: Task) -> nn.Module:
    """Three bottleneck blocks in place of 16, half as wide, on half the resolution: half a million parameters."""
    return resnet50(task, SMALL, stride=2)


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        last = _normed(width, outputs, 1, 1)
        nn.init.zeros_(last[1].weight)  # every block starts as the identity (Goyal et al. 2017)
        self.body = nn.Sequential(
            *_normed(inputs, width, 1, 1),
            nn.ReLU(),
            *_normed(width, width, 3, stride),
            nn.ReLU(),
            *last,
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_normed(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Body plus shortcut."""
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def _normed(inputs: int, outputs: int, size: int, stride: int) -> tuple[nn.Conv2d, nn.GroupNorm]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return convolution, nn.GroupNorm(GROUPS, outputs)
