"""elastic-fl: federated learning for clients that are unlike each other and unreliable.

>>> import efl
>>> federation = efl.load("digits", clients=20, partition="classes:2")
>>> result = efl.train(federation, algorithm=efl.EFL(density_up=0.05, density_down=0.05), rounds=2)
>>> result.summary["algorithm"], result.summary["rounds"]
('efl', 2)
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Everything public, and where it is; imported when first used, so that `efl --help` answers without loading PyTorch.
if TYPE_CHECKING:
    from efl.algorithms import (
        APFL,
        EFL,
        STC,
        VRLSGD,
        Algorithm,
        Bucketing,
        CAFe,
        CentredClipping,
        ClipByNorm,
        CoordinateMedian,
        Defence,
        Ditto,
        EightBit,
        ErrorFeedback,
        FedAdagrad,
        FedAdam,
        FedAMP,
        FedAvg,
        FedAvgM,
        FedBN,
        FedCurv,
        FedDyn,
        FedGATE,
        FedNova,
        FedPer,
        FedProx,
        FedRep,
        FedSMU,
        FedYogi,
        GeometricMedian,
        LocalWork,
        MajorityVote,
        Mime,
        MultiKrum,
        NearestNeighbourMixing,
        Part,
        Privacy,
        Scaffold,
        Scallion,
        ServerAdagrad,
        ServerAdam,
        ServerMomentum,
        ServerYogi,
        SharedSupport,
        SignSGD,
        SparseTernary,
        StalenessDiscount,
        Step,
        Transform,
        TrimmedMean,
        Uncompressed,
        chain,
        create,
        run_round,
    )
    from efl.api import load_model, resume, run, train
    from efl.config import Experiment, load_experiment
    from efl.errors import UserError
    from efl.federation import Federation, load
    from efl.fleet import Fleet
    from efl.plugins import register
    from efl.runs.callbacks import BestCheckpoint, Callback, CSVFile, EarlyStopping
    from efl.runs.comparison import compare
    from efl.training.optimisers import SGD, Adam, AdamW, Optimiser
    from efl.training.tasks import Metric, Task


def _public_names() -> dict[str, str]:
    """The names above and their modules, read from this file, so that each is written once."""
    source = pkgutil.get_data(__name__, "__init__.py")
    assert source is not None
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_WHERE = _public_names()
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'efl' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return ["__version__", *__all__]
