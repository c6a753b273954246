"""What is trained: any `nn.Module`, seen as one flat vector, and the networks known by name."""

from torch import nn

from efl.models.flat import FlatModel
from efl.models.input_spec import Task
from efl.models.registry import NETWORKS
from efl.models.selection import LAST_LAYER, Names
from efl.rng import seeded_torch

__all__ = ["LAST_LAYER", "NETWORKS", "FlatModel", "Names", "Task", "build"]


def build(name: str, task: Task, seed: int) -> nn.Module:
    """A network by name, initialised from ``seed`` alone.

    >>> build("mlp", Task((1, 8, 8), classes=10), seed=0)[1]
    Linear(in_features=64, out_features=128, bias=True)
    """
    make = NETWORKS.get(name)
    with seeded_torch(seed):
        return make(task)
