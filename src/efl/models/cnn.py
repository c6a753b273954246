"""Convolutional networks for small images."""

from torch import nn

from efl.models.task import Task


def cnn_large(task: Task) -> nn.Module:
    """The network of McMahan et al. 2017: two 5 × 5 convolutions, 512 units; 1.66 million parameters for 28 × 28."""
    channels, height, width = task.image("cnn_large", 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, task.classes),
    )


def cnn(task: Task) -> nn.Module:
    """Two 3 × 3 convolutions with pooling, then two linear layers."""
    channels, height, width = task.image("cnn", 4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, task.classes),
    )
