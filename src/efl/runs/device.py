"""The device that an experiment names."""

from __future__ import annotations

import os

import torch

from efl.errors import UserError


def device_named(name: str) -> torch.device:
    """The device to compute on; ``cuda`` without a number is the one of this process among those torchrun started."""
    if name == "cpu":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise UserError(f"engine.device is {name!r}, but PyTorch finds no CUDA device here; use 'cpu'")
    count = torch.cuda.device_count()
    number = int(name.partition(":")[2] or int(os.environ.get("LOCAL_RANK", 0)) % count)
    if number >= count:
        raise UserError(f"engine.device is {name!r}, but there are only {count} CUDA devices here, counted from 0")
    return torch.device("cuda", number)
