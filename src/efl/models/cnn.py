"""Convolutional networks for small images."""

from itertools import pairwise

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


@NETWORKS.register("cnn_unpadded")
def cnn_unpadded(task: Task) -> nn.Module:
    """The same with convolutions that stay inside the image, as PFLlib (Zhang et al. 2025) has it."""
    return _unpadded(task, "cnn_unpadded", filters=(32, 64), hidden=(512,))


@NETWORKS.register("lenet")
def lenet(task: Task) -> nn.Module:
    """LeNet as federated learning knows it (Acar et al. 2021): twice 64 filters, 384 and 192 units."""
    return _unpadded(task, "lenet", filters=(64, 64), hidden=(384, 192))


def _unpadded(task: Task, name: str, filters: tuple[int, int], hidden: tuple[int, ...]) -> nn.Module:
    """Two 5 × 5 convolutions without padding, each with pooling, and linear layers."""
    channels, height, width = task.image(name, 16)
    first, second = filters
    layers: list[nn.Module] = []
    for before, after in ((channels, first), (first, second)):
        layers += [nn.Conv2d(before, after, 5), nn.ReLU(), nn.MaxPool2d(2)]
        height, width = (height - 4) // 2, (width - 4) // 2
    sizes = (second * height * width, *hidden)
    units = [part for before, after in pairwise(sizes) for part in (nn.Linear(before, after), nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), *units, nn.Linear(sizes[-1], task.classes))


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
