"""An experiment that says everything: with every setting of its algorithm, its transformations and its fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from efl.algorithms import Algorithm, codec_table, find, name_of, transform_tables
from efl.config import CUSTOM, Experiment
from efl.config_sections import Transformation
from efl.errors import UserError
from efl.fleet import Fleet


def resolved(experiment: Experiment, algorithm: Algorithm, fleet: Fleet) -> Experiment:
    """The experiment with every setting of its algorithm and fleet."""
    named = {"name": _name(experiment, algorithm), **_settings(algorithm)}
    transforms = tuple(Transformation(**table) for table in transform_tables(algorithm))
    described = {"algorithm": named, "transform": transforms, "codec": codec_table(algorithm)}
    return experiment.model_copy(update={**described, "fleet": _settings(fleet)})


def _name(experiment: Experiment, algorithm: Algorithm) -> str:
    """The name to report: the experiment's if that is the algorithm's class, that of its class otherwise."""
    try:
        named = find(experiment.algorithm_name)[0]
    except UserError:  # the algorithm is the user's own object
        named = None
    return experiment.algorithm_name if named is type(algorithm) else name_of(algorithm)


def _settings(value: object) -> Mapping[str, Any]:
    """The fields of a settings object as they stand in a file; a function of the user's own is `custom`."""
    fields = asdict(value) if is_dataclass(value) and not isinstance(value, type) else {}
    return {key: CUSTOM if callable(item) else _listed(item) for key, item in fields.items() if item is not None}


def _listed(item: Any) -> Any:
    """With lists for tuples at every depth, as a file has them."""
    if isinstance(item, Mapping):
        return {key: _listed(value) for key, value in item.items()}
    return [_listed(value) for value in item] if isinstance(item, tuple) else item
