"""What is trained: any `nn.Module`, seen as one flat vector, and the networks known by name."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from efl.errors import UserError
from efl.models.cnn import cnn
from efl.models.flat import FlatModel, Rows
from efl.models.linear import linear
from efl.models.mlp import mlp

__all__ = ["NETWORKS", "FlatModel", "Rows", "build"]

NETWORKS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "mlp200": partial(mlp, hidden=(200, 200)),
    "cnn": cnn,
}


def build(name: str, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A network by name, initialised from ``seed`` alone.

    >>> build("mlp", (1, 8, 8), 10, seed=0)[1]
    Linear(in_features=64, out_features=128, bias=True)
    """
    if name not in NETWORKS:
        raise UserError(f"unknown model {name!r}; choose one of: auto, {', '.join(NETWORKS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name](input_shape, classes)
