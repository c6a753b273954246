"""Convolutional networks for small images."""

from torch import nn

from efl.models.input_spec import Task
from efl.models.registry import NETWORKS


@NETWORKS.register("cnn")
def cnn(task: Task) -> nn.Module:
    """Two 3 × 3 convolutions with pooling, then two linear layers."""
    return _two_convolutions(task, "cnn", size=3, filters=(16, 32), hidden=64)


@NETWORKS.register("cnn_large")
def cnn_large(task: Task) -> nn.Module:
    """The network of McMahan et al. 2017: two 5 × 5 convolutions, 512 units; 1.66 million parameters for 28 × 28."""
    return _two_convolutions(task, "cnn_large", size=5, filters=(32, 64), hidden=512)


def _two_convolutions(task: Task, name: str, size: int, filters: tuple[int, int], hidden: int) -> nn.Module:
    channels, height, width = task.image(name, 4)
    first, second = filters
    return nn.Sequential(
        nn.Conv2d(channels, first, size, padding=size // 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, size, padding=size // 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (height // 4) * (width // 4), hidden),
        nn.ReLU(),
        nn.Linear(hidden, task.classes),
    )
