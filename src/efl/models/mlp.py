"""A multi-layer perceptron over the flattened sample."""

from itertools import pairwise
from math import prod

from torch import nn


def mlp(input_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (128, 64)) -> nn.Module:
    """Linear layers with ReLU between them."""
    sizes = (prod(input_shape), *hidden, classes)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
