"""The algorithms known by name, their presets, and how an experiment's tables become one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, cast

from efl.algorithms.base import Algorithm
from efl.algorithms.compression.codec import CODECS, Codec
from efl.algorithms.transform import TRANSFORMS, Transform, chain
from efl.errors import UserError
from efl.plugins import Registry
from efl.settings import make

ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "algorithm",
    lambda thing: thing if isinstance(thing, type) and issubclass(thing, Algorithm) else None,
    built_in="efl.algorithms",
)
"""The algorithms known by name."""


def create(
    name: str,
    settings: Mapping[str, Any] | None = None,
    transforms: Sequence[Mapping[str, Any]] = (),
    codec: Mapping[str, Any] | None = None,
) -> Algorithm:
    """An algorithm by name, or by name:preset, with its hyper-parameters and the transformations around it.

    Args:
        name: A registered name, one with a preset such as ``efl:paper``, or ``package.module:Class``.
        settings: Hyper-parameters, as in an experiment's [algorithm] section.
        transforms: Tables with a ``name`` and hyper-parameters, as in [[transform]].
        codec: Such a table for the codec, as in [codec]; by default the algorithm's own.

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
    made = create_codec(codec) if codec else None
    return chain(algorithm, *map(create_transform, transforms), codec=made) if transforms or made else algorithm


def create_transform(table: Mapping[str, Any]) -> Transform:
    """The transformation that a [[transform]] table describes."""
    name, values = _named(table, 'transform: every [[transform]] needs a name, such as name = "clip_by_norm"')
    return cast(Transform, make(TRANSFORMS.get(name), values, "transform"))


def create_codec(table: Mapping[str, Any]) -> Codec:
    """The codec that a [codec] table describes; around another one, that is a table in it.

    >>> create_codec({"name": "error_feedback", "codec": {"name": "eight_bit"}})
    ErrorFeedback(codec=EightBit(), resend=True, server_applies='broadcast', sides='both')
    """
    name, values = _named(table, 'codec: [codec] needs a name, such as name = "sparse_ternary"')
    inner = {key: create_codec(value) for key, value in values.items() if isinstance(value, Mapping)}
    return cast(Codec, make(CODECS.get(name), values | inner, "codec"))


def codec_table(algorithm: Algorithm) -> dict[str, Any]:
    """The [codec] table that describes what `chain` put in place of the algorithm's own codec; empty if nothing."""
    known = {cls: name for name, cls in CODECS.items()}

    def described(codec: Codec) -> dict[str, Any]:
        values = {one.name: getattr(codec, one.name) for one in fields(codec)}
        inner = {key: described(value) for key, value in values.items() if isinstance(value, Codec)}
        return {"name": known.get(type(codec), import_path(codec)), **values, **inner}

    return {} if algorithm.replaced_codec is None else described(algorithm.replaced_codec)


def import_path(thing: object) -> str:
    """Where the class of a thing can be imported from."""
    return f"{type(thing).__module__}:{type(thing).__qualname__}"


def _named(table: Mapping[str, Any], otherwise: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(table.get("name"), str):
        raise UserError(otherwise)
    return str(table["name"]), {key: value for key, value in table.items() if key != "name"}


def transform_tables(algorithm: Algorithm) -> list[dict[str, Any]]:
    """The [[transform]] tables that describe what `chain` added to an algorithm."""
    known = {cls: name for name, cls in TRANSFORMS.items()}
    added = algorithm.added_transforms
    names = [known.get(type(one), import_path(one)) for one in added]
    values = [{key: value for key, value in asdict(one).items() if value is not None} for one in added]
    return [{"name": name, **of_it} for name, of_it in zip(names, values, strict=True)]


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
