"""A small convolutional network for images of 8 × 8 pixels and more."""

from torch import nn

from efl.models.task import Task


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
