"""The network that a run directory's weights belong to, so that they can be loaded without the data."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import nn

from efl.config import CUSTOM
from efl.errors import UserError
from efl.federation import Federation
from efl.models import Task, build
from efl.models.files import load_module
from efl.plugins import load_plugin
from efl.runs.directory import RunDirectory
from efl.storage import write_atomically

FILE = "network.json"


def write_network(directory: Path, federation: Federation) -> None:
    """Note the data that the network was made for."""
    shape = {"input_shape": federation.input_shape, "classes": federation.classes}
    notes = {**shape, "vocabulary": federation.vocabulary}
    write_atomically(directory / FILE, (json.dumps(notes) + "\n").encode())


def read_model(path: Path, model: nn.Module | None = None) -> nn.Module:
    """The trained module in a run directory, or in a file of weights there; a copy of ``model`` with them, if given."""
    directory, weights = (path, RunDirectory(path).model) if path.is_dir() else (path.parent, path)
    if not weights.is_file():
        raise UserError(f"{weights}: no such file; a run writes its model at its end")
    module = copy.deepcopy(model) if model is not None else _network(directory)
    if found := _difference(module, weights):
        raise UserError(
            f"{weights}: not the weights of this model: {found}; pass a module of the kind that was trained"
        )
    return load_module(module, weights).eval()


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


def _network(directory: Path) -> nn.Module:
    """The network by name that the run in ``directory`` trained, untrained."""
    experiment = RunDirectory.open(directory).experiment()
    if experiment.model.name == CUSTOM:
        raise UserError(f"{directory}: a run with a model of your own; pass one of the same kind: load_model(…, model)")
    for file in experiment.plugins:
        load_plugin(file)
    try:
        notes = json.loads((directory / FILE).read_text())
    except (OSError, ValueError):
        raise UserError(f"{directory} does not say what its network was made for; pass a module of its kind") from None
    spec = Task(tuple(notes["input_shape"]), notes["classes"], notes["vocabulary"])
    return build(experiment.model.name, spec, seed=0)
