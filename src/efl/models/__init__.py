"""What is trained: any `nn.Module`, seen as one flat vector, and the networks known by name."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from efl.errors import UserError
from efl.models.cnn import cnn, cnn_large
from efl.models.flat import FlatModel
from efl.models.input_spec import Task
from efl.models.linear import linear
from efl.models.lstm import char_lstm, sentiment_lstm
from efl.models.mlp import mlp
from efl.models.resnet import resnet50
from efl.models.vgg import vgg11
from efl.training.backends.native import Batches
from efl.training.backends.rows import Rows

__all__ = ["NETWORKS", "Batches", "FlatModel", "Rows", "Task", "build"]

NETWORKS: dict[str, Callable[[Task], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "mlp200": partial(mlp, hidden=(200, 200)),
    "cnn": cnn,
    "cnn_large": cnn_large,
    "vgg11": vgg11,
    "resnet50": resnet50,
    "char_lstm": char_lstm,
    "sentiment_lstm": sentiment_lstm,
}


def build(name: str, task: Task, seed: int) -> nn.Module:
    """A network by name, initialised from ``seed`` alone.

    >>> build("mlp", Task((1, 8, 8), classes=10), seed=0)[1]
    Linear(in_features=64, out_features=128, bias=True)
    """
    if name not in NETWORKS:
        raise UserError(f"unknown model {name!r}; choose one of: auto, {', '.join(NETWORKS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name](task)
