"""elastic-fl: federated learning for clients that are unlike each other and unreliable.

>>> import efl
>>> federation = efl.load("digits", clients=20, partition="classes:2")
>>> result = efl.train(federation, algorithm=efl.EFL(density_up=0.05, density_down=0.05), rounds=2)
>>> result.summary["algorithm"], result.summary["rounds"]
('efl', 2)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from efl.algorithms import (
        APFL,
        EFL,
        STC,
        VRLSGD,
        Algorithm,
        FedAMP,
        FedAvg,
        FedCurv,
        FedGATE,
        FedNova,
        FedProx,
        Mime,
        Scaffold,
        SignSGD,
        create,
    )
    from efl.api import resume, run, train
    from efl.config import Experiment, load_experiment
    from efl.errors import UserError
    from efl.federation import Federation, load
    from efl.fleet import Fleet
    from efl.plugins import register
    from efl.runs.comparison import compare

# Imported when first used: the command answers `--help` without loading PyTorch.
_WHERE = {
    "APFL": "efl.algorithms",
    "Algorithm": "efl.algorithms",
    "EFL": "efl.algorithms",
    "Experiment": "efl.config",
    "FedAMP": "efl.algorithms",
    "FedAvg": "efl.algorithms",
    "FedCurv": "efl.algorithms",
    "FedGATE": "efl.algorithms",
    "FedNova": "efl.algorithms",
    "FedProx": "efl.algorithms",
    "Federation": "efl.federation",
    "Fleet": "efl.fleet",
    "Mime": "efl.algorithms",
    "STC": "efl.algorithms",
    "Scaffold": "efl.algorithms",
    "SignSGD": "efl.algorithms",
    "UserError": "efl.errors",
    "VRLSGD": "efl.algorithms",
    "compare": "efl.runs.comparison",
    "create": "efl.algorithms",
    "load": "efl.federation",
    "load_experiment": "efl.config",
    "register": "efl.plugins",
    "resume": "efl.api",
    "run": "efl.api",
    "train": "efl.api",
}

__all__ = [
    "APFL",
    "EFL",
    "STC",
    "VRLSGD",
    "Algorithm",
    "Experiment",
    "FedAMP",
    "FedAvg",
    "FedCurv",
    "FedGATE",
    "FedNova",
    "FedProx",
    "Federation",
    "Fleet",
    "Mime",
    "Scaffold",
    "SignSGD",
    "UserError",
    "compare",
    "create",
    "load",
    "load_experiment",
    "register",
    "resume",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'efl' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
