"""A multi-layer perceptron over the flattened sample."""

from math import prod

from torch import nn


def mlp(input_shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (128, 64)) -> nn.Module:
    """Linear layers with ReLU between them."""
    sizes = (prod(input_shape), *hidden, classes)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
