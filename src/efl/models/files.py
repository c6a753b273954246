"""Modules in safetensors files. Tensors that a module has under several names, tied weights, are in the file once."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
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
    if found := _difference(module, path):
        raise UserError(f"{path}: not the weights of this model: {found}; pass a module of the kind that was trained")
    try:
        load_model(module, str(path))
    except (RuntimeError, SafetensorError, OSError) as error:
        raise UserError(f"{path}: not the weights of this model ({first_line(error)})") from None
    return module


def _difference(module: nn.Module, weights: Path) -> str:
    """A tensor in which a file and a module differ; nothing if none does, or the file cannot be read."""
    try:
        with safe_open(weights, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  not a dict
    except (SafetensorError, OSError):
        return ""
    tensors = module.state_dict()
    own = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, shape in shapes.items():
        if name not in own:
            return f"they have a tensor {name} {shape}, which the model does not"
        if own[name] != shape:
            return f"{name} has shape {shape}, that of the model {own[name]}"
    there = {tensors[name].data_ptr() for name in shapes}  # of tied tensors a file has one
    lacking = [name for name, tensor in tensors.items() if tensor.data_ptr() not in there and tensor.numel()]
    return f"they lack {lacking[0]} {own[lacking[0]]}" if lacking else ""
