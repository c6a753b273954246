"""What is computed: the algorithms by name."""

from collections.abc import Mapping
from typing import Any, cast

from efl.algorithms.apfl import APFL
from efl.algorithms.base import Algorithm
from efl.algorithms.efl import EFL, PAPER
from efl.algorithms.fedamp import FedAMP
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.fedcurv import FedCurv
from efl.algorithms.fedgate import COMPRESSED, FedGATE
from efl.algorithms.fednova import FedNova
from efl.algorithms.fedprox import FedProx
from efl.algorithms.mime import LITE, Mime
from efl.algorithms.scaffold import Scaffold
from efl.algorithms.signsgd import SignSGD
from efl.algorithms.stc import STC
from efl.algorithms.vrlsgd import VRLSGD
from efl.errors import UserError
from efl.settings import Settings, make

__all__ = [
    "ALGORITHMS",
    "APFL",
    "EFL",
    "STC",
    "VRLSGD",
    "Algorithm",
    "FedAMP",
    "FedAvg",
    "FedCurv",
    "FedGATE",
    "FedNova",
    "FedProx",
    "Mime",
    "Scaffold",
    "SignSGD",
    "create",
    "every_name",
    "find",
]

ALGORITHMS: dict[str, type[Settings]] = {
    "efl": EFL,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fednova": FedNova,
    "scaffold": Scaffold,
    "fedgate": FedGATE,
    "vrlsgd": VRLSGD,
    "mime": Mime,
    "stc": STC,
    "signsgd": SignSGD,
    "fedcurv": FedCurv,
    "apfl": APFL,
    "fedamp": FedAMP,
}
PRESETS: dict[str, dict[str, Mapping[str, Any]]] = {
    "efl": {"paper": PAPER},
    "fedgate": {"compressed": COMPRESSED},
    "mime": {"lite": LITE},
}


def create(name: str, settings: Mapping[str, Any] | None = None) -> Algorithm:
    """An algorithm by name, or by name:preset, with its hyper-parameters.

    >>> create("efl", {"elasticity": 0.5}).elasticity
    0.5
    >>> create("efl:paper").step
    'explicit'
    """
    cls, preset = find(name)
    return cast(Algorithm, make(cls, {**preset, **(settings or {})}, "algorithm"))


def every_name() -> list[str]:
    """All algorithms, each followed by its presets."""
    return [full for name in ALGORITHMS for full in (name, *(f"{name}:{preset}" for preset in PRESETS.get(name, {})))]


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
