"""A multi-layer perceptron over the flattened sample."""

from functools import partial
from itertools import pairwise
from math import prod

from torch import nn

from efl.models.input_spec import Task
from efl.models.registry import NETWORKS


@NETWORKS.register("mlp")
def mlp(task: Task, hidden: tuple[int, ...] = (128, 64)) -> nn.Module:
    """Linear layers with ReLU between them."""
    sizes = (prod(task.numbers("mlp")), *hidden, task.classes)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


NETWORKS.register("mlp200", partial(mlp, hidden=(200, 200)))
