"""From a module to the vector that is trained: what an experiment freezes, and what it leaves to clients."""

from __future__ import annotations

import torch
from torch import nn

from efl.algorithms import Algorithm, FedPer
from efl.config import Experiment
from efl.errors import UserError
from efl.models import FlatModel, Names


def flat_model(
    module: nn.Module, experiment: Experiment, algorithm: Algorithm, device: torch.device | str = "cpu"
) -> FlatModel:
    """The network as a vector, without what the experiment freezes and what it or the algorithm leaves to clients."""
    names, wanted = Names(module), experiment.model
    names.check(wanted.trainable, "model.trainable")
    names.check(wanted.personal, "model.personal")
    if isinstance(algorithm, FedPer):
        names.check(algorithm.layers, "algorithm.layers")
    model = FlatModel(module, device, wanted.trainable, [*wanted.personal, *algorithm.personal_layers])
    for pattern in wanted.personal:
        if names.matching([pattern]).isdisjoint(model.personal_names):
            raise UserError(
                f"model.personal: what {pattern!r} matches is not trained, so all clients have it alike; "
                "have it trained (trainable, requires_grad), or leave it out of personal"
            )
    return model
