"""The experiment, as the app's configuration in pyproject.toml says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from efl.config import Experiment, parse
from efl.errors import UserError
from efl.federation import Federation
from efl.fleet import Fleet
from efl.settings import make

MakeModel = Callable[[Experiment], nn.Module]
LoadData = Callable[[Mapping[str, Any], Experiment], Federation]

ALLOWED = ("selection", "on_departure", "abandon")


def experiment_of(run_config: Mapping[str, Any]) -> Experiment:
    """The experiment in an app's flat ``section.key`` configuration.

    >>> experiment_of({"training.rounds": 5, "fleet.on_departure": "drop"}).training.rounds
    5
    """
    table: dict[str, dict[str, Any]] = {}
    transforms: dict[str, dict[str, Any]] = {}
    for name, value in run_config.items():
        section, dot, key = name.partition(".")
        if not dot:
            raise UserError(f"{name}: write section.key, such as training.rounds")
        outer, dot, inner = key.partition(".")
        if section == "transform" and dot:  # such as transform.privacy.epsilon
            transforms.setdefault(outer, {})[inner] = value
            continue
        table.setdefault(section, {})
        if section == "training" and dot:  # a table within the section, such as training.optimiser.name
            table[section].setdefault(outer, {})[inner] = value
        else:
            table[section][key] = value
    listed = {"transform": [{"name": name, **values} for name, values in transforms.items()]} if transforms else {}
    return parse({**table, **listed, "track": {**table.get("track", {}), "checkpoint_every": 1}})


def fleet_of(experiment: Experiment) -> Fleet:
    """Whom to ask and what to do about those who leave; the rest of a fleet is the real world's business."""
    for key in experiment.fleet:
        if key not in ALLOWED:
            raise UserError(f"fleet.{key}: only for simulated clients; on a network write: {', '.join(ALLOWED)}")
    fleet = make(Fleet, experiment.fleet, "fleet")
    assert isinstance(fleet, Fleet)
    if fleet.selection == "available" or not (fleet.abandon is False or isinstance(fleet.abandon, float | int)):
        raise UserError("fleet: on a network write selection = uniform, share or poisson, abandon = false or a number")
    return fleet
