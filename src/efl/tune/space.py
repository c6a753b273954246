"""What is searched: an experiment's keys with their ranges, from what algorithms declare and what the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from efl.algorithms import find
from efl.algorithms.search import LEARNING_RATE, Around, Choice, Range
from efl.config import Experiment
from efl.errors import UserError
from efl.reading import DamagedError, parse_toml
from efl.runs.setup import algorithm_of
from efl.settings import unknown_key

Dimension = Range | Choice
Space = dict[str, Dimension]
Values = Mapping[str, Any]
SEARCHABLE = ("learning_rate", "decay", "batch_size", "warmup")  # of [training]; others would change the budget
HOW = "write KEY=LOW:HIGH, KEY=LOW:HIGH:linear or KEY=VALUE,VALUE, such as --space training.learning_rate=0.01:1"


@dataclass(frozen=True)
class Override:
    """What a ``--space`` option says: for one algorithm by name, or for all that have the key."""

    text: str
    algorithm: str | None
    key: str
    dimension: Dimension


def parse_override(text: str) -> Override:
    """Read ``section.key=low:high``, ``section.key=low:high:linear`` or ``section.key=value,value``.

    >>> parse_override("algorithm.fedprox.proximity=0.01:1")
    Override(text='algorithm.fedprox.proximity=0.01:1', algorithm='fedprox', key='algorithm.proximity', \
dimension=Range(low=0.01, high=1.0, log=True))

    Raises:
        UserError: If it says something else, or a range is none.
    """
    name, equals, said = (part.strip() for part in text.partition("="))
    section, *owner, key = name.split(".") if name.count(".") in (1, 2) else ("", "")
    if not (equals and said and key) or section not in ("training", "algorithm") or (owner and section == "training"):
        raise UserError(f"--space {text}: {HOW}")
    try:
        dimension = _dimension(said)
    except UserError as error:
        raise UserError(f"--space {text}: {error}") from None
    return Override(text, owner[0] if owner else None, f"{section}.{key}", dimension)


def _dimension(said: str) -> Dimension:
    low, colon, rest = said.partition(":")
    if not colon:
        return Choice(tuple(map(_value, said.split(","))))
    high, _, scale = rest.partition(":")
    try:
        bounds = float(low), float(high)
    except ValueError:
        raise UserError(f"{low}:{high} are no numbers; {HOW}") from None
    if scale not in ("", "log", "linear"):
        raise UserError(f"the scale is log or linear, not {scale!r}")
    return Range(*bounds, log=scale != "linear")


def _value(word: str) -> str | int | float | bool:
    try:
        value = parse_toml(f"value = {word.strip()}")["value"]
    except DamagedError:
        value = word.strip()  # a bare word is a string
    if not isinstance(value, str | int | float | bool) or value == "":
        raise UserError(f"{word.strip()!r} is no value; {HOW}")
    return value


def space_of(name: str, experiment: Experiment, overrides: Sequence[Override] = ()) -> Space:
    """What is searched for the algorithm of an experiment.

    Args:
        name: The algorithm, as ``overrides`` may name it.
        experiment: Where to search from: ranges around a value are around the experiment's.
        overrides: What the user says takes the place of what the algorithm declares.

    Returns:
        A dimension for each key of the experiment that is searched.

    Raises:
        UserError: If a range reaches values that its key may not have.
    """
    algorithm = algorithm_of(experiment)
    declared = {LEARNING_RATE: Around(), **{f"algorithm.{key}": d for key, d in algorithm.search_space.items()}}
    space: Space = {
        key: one.range(_number(key, experiment)) if isinstance(one, Around) else one for key, one in declared.items()
    }
    known = {one.name for one in fields(algorithm)}
    for override in overrides:
        section, _, key = override.key.partition(".")
        if override.algorithm in (None, name) and (section == "training" or key in known):
            _check(override, experiment)
            space[override.key] = override.dimension
    return space


def check_overrides(overrides: Sequence[Override], names: Sequence[str]) -> None:
    """Raise `UserError` if an override has a key that none of the algorithms searches, or names another algorithm."""
    known = {name: [one.name for one in fields(find(name)[0])] for name in names}
    for override in overrides:
        section, _, key = override.key.partition(".")
        if section == "training" and key not in SEARCHABLE:
            listed = ", ".join(f"training.{one}" for one in SEARCHABLE)
            raise UserError(f"--space {override.text}: of [training] these can be searched: {listed}")
        if override.algorithm is not None and override.algorithm not in known:
            raise UserError(f"--space {override.text}: {override.algorithm!r} is not among --algorithms")
        asked = known if override.algorithm is None else {override.algorithm: known[override.algorithm]}
        if section == "algorithm" and not any(key in keys for keys in asked.values()):
            every = sorted({f"algorithm.{one}" for keys in asked.values() for one in keys})
            raise UserError(f"--space {override.text}: {unknown_key(override.key, every)}")


def _check(override: Override, experiment: Experiment) -> None:
    one = override.dimension
    ends: Sequence[Any] = (one.low, one.high) if isinstance(one, Range) else one.values
    for value in ends:
        try:
            whole = int(value) if isinstance(one, Range) and is_whole(override.key, experiment) else value
            algorithm_of(applied(experiment, {override.key: whole}))
        except UserError as error:
            raise UserError(f"--space {override.text}: {error}") from None


def applied(experiment: Experiment, values: Values) -> Experiment:
    """The experiment with these values, by key.

    >>> applied(Experiment(), {"training.learning_rate": 0.5, "algorithm.elasticity": 1.0}).algorithm
    {'name': 'efl', 'elasticity': 1.0}
    """
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return experiment.with_values(**sections) if sections else experiment


def default_of(key: str, experiment: Experiment) -> Any:
    """What the experiment has for a key, by itself or by its algorithm's default."""
    section, _, name = key.partition(".")
    return getattr(experiment.training if section == "training" else algorithm_of(experiment), name)


def is_whole(key: str, experiment: Experiment) -> bool:
    """Whether a key takes whole numbers."""
    value = default_of(key, experiment)
    return isinstance(value, int) and not isinstance(value, bool)


def _number(key: str, experiment: Experiment) -> float:
    return float(default_of(key, experiment))
