"""A small convolutional network for images of 8 × 8 pixels and more."""

import torch
from torch import nn

from efl.errors import UserError


def cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 3 × 3 convolutions with pooling, then two linear layers."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise UserError(f"model 'cnn' needs images (channels, height, width) of 4 × 4 or more, got shape {input_shape}")
    features = nn.Sequential(
        nn.Conv2d(input_shape[0], 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    with torch.no_grad():
        width = features(torch.zeros(1, *input_shape)).shape[1]
    return nn.Sequential(features, nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, classes))
