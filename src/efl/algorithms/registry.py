"""The algorithms known by name, their presets, and how an experiment's tables become one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from efl.algorithms.base import Algorithm
from efl.algorithms.transform import TRANSFORMS, Transform, chain
from efl.errors import UserError
from efl.plugins import Registry
from efl.settings import make

ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "algorithm",
    lambda thing: thing if isinstance(thing, type) and issubclass(thing, Algorithm) else None,
    built_in="efl.algorithms",
)


def create(
    name: str, settings: Mapping[str, Any] | None = None, transforms: Sequence[Mapping[str, Any]] = ()
) -> Algorithm:
    """An algorithm by name, or by name:preset, with its hyper-parameters and the transformations around it.

    Args:
        name: A registered name, one with a preset such as ``efl:paper``, or ``package.module:Class``.
        settings: Hyper-parameters, as in an experiment's [algorithm] section.
        transforms: Tables with a ``name`` and hyper-parameters, as in [[transform]].

    Raises:
        UserError: Something unknown or out of range.

    Example:
        >>> create("efl", {"elasticity": 0.5}).elasticity
        0.5
        >>> create("efl:paper").step
        'explicit'
        >>> create("fedavg", transforms=[{"name": "clip_by_norm", "norm": 2}]).transforms
        (ClipByNorm(norm=2.0),)
    """
    cls, preset = find(name)
    algorithm = cast(Algorithm, make(cls, {**preset, **(settings or {})}, "algorithm"))
    return chain(algorithm, *map(create_transform, transforms)) if transforms else algorithm


def create_transform(table: Mapping[str, Any]) -> Transform:
    """The transformation that a [[transform]] table describes."""
    if not isinstance(table.get("name"), str):
        raise UserError('transform: every [[transform]] needs a name, such as name = "clip_by_norm"')
    values = {key: value for key, value in table.items() if key != "name"}
    return cast(Transform, make(TRANSFORMS.get(table["name"]), values, "transform"))


def transform_tables(algorithm: Algorithm) -> list[dict[str, Any]]:
    """The [[transform]] tables that describe what `chain` added to an algorithm."""
    known = {cls: name for name, cls in TRANSFORMS.items()}
    added = algorithm.added_transforms
    names = [known.get(type(one), f"{type(one).__module__}:{type(one).__qualname__}") for one in added]
    return [{"name": name, **asdict(one)} for name, one in zip(names, added, strict=True)]


def every_name() -> list[str]:
    """All algorithms, EFL first, each followed by its presets."""
    found = sorted(ALGORITHMS.items(), key=lambda pair: (pair[0] != "efl", pair[0]))
    return [full for name, cls in found for full in (name, *(f"{name}:{preset}" for preset in cls.presets))]


def find(name: str) -> tuple[type[Algorithm], Mapping[str, Any]]:
    """The class a name stands for, and the values its preset sets."""
    cls, preset = ALGORITHMS.split(name)
    if preset and preset not in cls.presets:
        known = f"choose one of: {', '.join(cls.presets)}" if cls.presets else "it has none"
        raise UserError(f"unknown preset {preset!r} of {name.partition(':')[0]}; {known}")
    return cls, cls.presets.get(preset, {})


def name_of(algorithm: Algorithm) -> str:
    """The name an algorithm's class is registered by, or the class's own in small letters."""
    known = {cls: name for name, cls in ALGORITHMS.items()}
    return known.get(type(algorithm), type(algorithm).__name__.lower())
