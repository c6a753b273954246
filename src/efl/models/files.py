"""Modules in safetensors files. Tensors that a module has under several names, tied weights, are in the file once."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_model
from safetensors.torch import save_model as save
from torch import nn

from efl.errors import UserError, first_line
from efl.storage import whole_file


def save_module(module: nn.Module, path: Path) -> None:
    """Write the weights of a module, whole or not at all."""
    with whole_file(path) as temporary:
        save(module, str(temporary))


def load_module(module: nn.Module, path: Path) -> nn.Module:
    """Read the weights of a module of the same kind into ``module``; `UserError` if they are of another one."""
    try:
        load_model(module, str(path))
    except (RuntimeError, SafetensorError, OSError) as error:
        raise UserError(f"{path}: not the weights of this model ({first_line(error)})") from None
    return module
