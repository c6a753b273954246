"""A multi-layer perceptron over the flattened sample."""

from itertools import pairwise
from math import prod

from torch import nn

from efl.models.input_spec import Task


def mlp(task: Task, hidden: tuple[int, ...] = (128, 64)) -> nn.Module:
    """Linear layers with ReLU between them."""
    sizes = (prod(task.numbers("mlp")), *hidden, task.classes)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
