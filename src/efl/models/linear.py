"""Multinomial logistic regression: the convex case."""

from math import prod

from torch import nn

from efl.models.input_spec import Task
from efl.models.registry import NETWORKS


@NETWORKS.register("linear")
def linear(task: Task) -> nn.Module:
    """One linear layer over the flattened sample, started at zero: convex, so where it starts is no matter of luck."""
    layer = nn.Linear(prod(task.numbers("linear")), task.classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)
