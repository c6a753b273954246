"""Modules in safetensors files. Tensors that a module has under several names, tied weights, are in the file once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_model, save, save_model
from torch import nn

from efl.errors import UserError, first_line
from efl.reading import DamagedError
from efl.storage import digest, read_tensors, whole_file

CHECKSUM = "sha256"  # of everything else in the file; those of earlier versions have none


def save_module(module: nn.Module, path: Path) -> None:
    """Write the weights of a module, whole or not at all."""
    with whole_file(path) as temporary:
        save_model(module, str(temporary))
        notes, tensors = read_tensors(temporary)  # as they are there: of tied tensors there is one
        temporary.write_bytes(save(tensors, notes | {CHECKSUM: digest(notes, tensors)}))


def load_module(module: nn.Module, path: Path) -> nn.Module:
    """Read the weights of a module of the same kind into ``module``; `UserError` if they are of another one."""
    check_weights(module, path)
    try:
        load_model(module, str(path))
    except (RuntimeError, SafetensorError, OSError) as error:
        raise UserError(f"{path}: not the weights of this model ({first_line(error)})") from None
    return module


def check_weights(module: nn.Module, path: Path) -> None:
    """Raise `UserError` if a file is damaged, or its weights are not of a module like this one."""
    if found := _difference(module, _checked_shapes(path)):
        raise UserError(f"{path}: not the weights of this model: {found}; pass a module of the kind that was trained")


def _checked_shapes(weights: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a file of weights; `UserError` if it is not as it was written."""
    try:
        notes, tensors = read_tensors(weights)
        written = notes.pop(CHECKSUM, None)
        if written is not None and written != digest(notes, tensors):
            raise DamagedError("its checksum does not match")
    except (DamagedError, OSError) as error:
        raise UserError(f"{weights}: not the weights of this model ({first_line(error)})") from None
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _difference(module: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """A tensor in which a file and a module differ; nothing if none does."""
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
