"""What is computed: the algorithms by name."""

from collections.abc import Mapping
from typing import Any, cast

from efl.algorithms.base import Algorithm
from efl.algorithms.efl import EFL, PAPER
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.fedprox import FedProx
from efl.errors import UserError
from efl.validation import Settings, make

__all__ = ["ALGORITHMS", "EFL", "Algorithm", "FedAvg", "FedProx", "create", "find"]

ALGORITHMS: dict[str, type[Settings]] = {"efl": EFL, "fedavg": FedAvg, "fedprox": FedProx}
PRESETS: dict[str, dict[str, Mapping[str, Any]]] = {"efl": {"paper": PAPER}}


def create(name: str, settings: Mapping[str, Any] | None = None) -> Algorithm:
    """An algorithm by name, or by name:preset, with its hyper-parameters.

    >>> create("efl", {"elasticity": 0.5}).elasticity
    0.5
    >>> create("efl:paper").step
    'explicit'
    """
    cls, preset = find(name)
    return cast(Algorithm, make(cls, {**preset, **(settings or {})}, "algorithm"))


def find(name: str) -> tuple[type[Settings], Mapping[str, Any]]:
    """The class a name stands for, and the values its preset sets."""
    plain, _, preset = name.partition(":")
    if plain not in ALGORITHMS:
        raise UserError(f"unknown algorithm {plain!r}; choose one of: {', '.join(ALGORITHMS)}")
    presets = PRESETS.get(plain, {})
    if preset and preset not in presets:
        known = f"choose one of: {', '.join(presets)}" if presets else "it has none"
        raise UserError(f"unknown preset {preset!r} of {plain}; {known}")
    return ALGORITHMS[plain], presets.get(preset, {})
