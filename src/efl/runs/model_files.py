"""The network that a run directory's weights belong to, so that they can be loaded without the data."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from efl.config import CUSTOM
from efl.errors import UserError
from efl.federation import Federation
from efl.models import Task, build
from efl.models.files import check_weights, load_module
from efl.plugins import load_plugin
from efl.reading import parse_json, read_text, readable, whole
from efl.runs.directory import RunDirectory
from efl.settings import MOST
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
    module = copy.deepcopy(model) if model is not None else _network(directory, weights)
    return load_module(module, weights).eval()


def _network(directory: Path, weights: Path) -> nn.Module:
    """The network by name that the run in ``directory`` trained, untrained; seen to fit before it takes memory."""
    experiment = RunDirectory.open(directory).experiment()
    if experiment.model.name == CUSTOM:
        raise UserError(f"{directory}: a run with a model of your own; pass one of the same kind: load_model(…, model)")
    for file in experiment.plugins:
        load_plugin(file)
    with readable(directory / FILE, "pass a module of its kind"):
        spec = _spec(parse_json(read_text(directory / FILE)))
        with torch.device("meta"):
            sketch = build(experiment.model.name, spec, seed=0)
        check_weights(sketch, weights)
        return build(experiment.model.name, spec, seed=0)


def _spec(notes: Any) -> Task:
    """What a network was made for, as network.json has it."""
    shape = tuple(whole(size, 1, MOST, "input_shape") for size in notes["input_shape"])
    vocabulary = notes["vocabulary"]
    vocabulary = None if vocabulary is None else whole(vocabulary, 1, MOST, "vocabulary")
    return Task(shape, whole(notes["classes"], 1, MOST, "classes"), vocabulary)
