"""An experiment: what is in its file, key by key, checked before anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from efl.config_sections import (
    EngineSection,
    FederationSection,
    ModelSection,
    NetworkSection,
    Section,
    TrackSection,
    TrainingSection,
    Transformation,
)
from efl.errors import UserError
from efl.settings import check_keys, one_line, overrides_by_section, read_toml, unknown_key

CUSTOM = "custom"
MOST_SAMPLES = 10**8  # that a client trains on in a round, repetitions counted
RENAMED = {"training": {"evaluate_own_every": "evaluate_personalised_every"}}  # keys of the first edition
LISTS = {  # what is no section, and how to write it
    "plugins": 'plugins: write a list of Python files at the top of the file, such as plugins = ["mine.py"]',
    "transform": "transform: write [[transform]] and below it the name and settings of one, again for each further one",
}


class Experiment(Section):
    """One experiment, complete; docs/experiments.md explains every key.

    Read one with `load_experiment`, change it with `with_values`, run it with `efl.run`.

    Args:
        plugins: Python files to import first, so that the names they register can be used.
        federation: Whose data.
        model: What is trained.
        training: How long and how.
        algorithm: Its name and hyper-parameters, checked by its class.
        transform: What acts on every update, in order; each checked by its class.
        codec: How updates travel, if not in the algorithm's own way.
        fleet: How clients are irregular, checked by `Fleet`.
        engine, track: How it is computed; what is kept, and which trackers get the figures.
        network: How clients on other machines are dealt with.

    >>> Experiment().training.rounds
    100
    """

    plugins: tuple[str, ...] = ()
    federation: FederationSection = FederationSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection()
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "efl"})
    transform: tuple[Transformation, ...] = ()
    codec: dict[str, Any] = Field(default_factory=dict)
    fleet: dict[str, Any] = Field(default_factory=dict)
    engine: EngineSection = EngineSection()
    track: TrackSection = TrackSection()
    network: NetworkSection = NetworkSection()

    @property
    def algorithm_name(self) -> str:
        """``name``, or ``name:preset``."""
        name = str(self.algorithm.get("name", "efl"))
        preset = self.algorithm.get("preset")
        return f"{name}:{preset}" if preset else name

    @property
    def algorithm_settings(self) -> dict[str, Any]:
        """The hyper-parameters of the algorithm."""
        return {key: value for key, value in self.algorithm.items() if key not in ("name", "preset")}

    def with_plugins(self, files: Iterable[str | os.PathLike[str]]) -> Experiment:
        """The experiment with these files in place of its plugins, each once and by its absolute path."""
        paths = (os.path.abspath(os.path.expanduser(file)) for file in files)
        return self.model_copy(update={"plugins": tuple(dict.fromkeys(paths))})

    def with_values(self, **sections: Mapping[str, Any]) -> Experiment:
        """The experiment with some values replaced, section by section."""
        table = self.model_dump()
        for section, values in sections.items():
            table[section] = {**table[section], **_renamed(section, values)}
        return parse(table)

    def flat(self) -> dict[str, Any]:
        """All keys that are set, as ``section.key``, and lists as they are.

        >>> Experiment().flat()["training.cohort"]
        10
        """
        flat: dict[str, Any] = {}
        for section, table in self.model_dump(exclude_none=True).items():
            flat |= {f"{section}.{key}": value for key, value in table.items()} if isinstance(table, Mapping) else {}
            flat |= {section: table} if table and not isinstance(table, Mapping) else {}
        return flat

    def to_toml(self) -> str:
        """The complete experiment file; what is None, and lists without entries, are left out."""
        table = self.model_dump(exclude_none=True)
        return tomli_w.dumps({key: value for key, value in table.items() if value != ()})


def parse(table: Mapping[str, Any]) -> Experiment:
    """An experiment from nested tables.

    Raises:
        UserError: Naming the first thing that is wrong.
    """
    table = {section: _renamed(section, values) for section, values in table.items()}
    for section, values in table.items():
        if section not in Experiment.model_fields:
            raise UserError(unknown_key(section, Experiment.model_fields))
        if section not in LISTS:
            _check_section(section, values)
    try:
        experiment = Experiment.model_validate(table)
    except ValidationError as error:
        raise UserError(LISTS.get(str(error.errors()[0]["loc"][0]), one_line(error))) from None
    cohort, clients = experiment.training.cohort, experiment.federation.clients
    if cohort > clients:
        raise UserError(f"training.cohort is {cohort}, but there are only {clients} clients; ask at most that many")
    if experiment.training.local_steps * experiment.training.batch_size > MOST_SAMPLES:
        raise UserError(f"training.local_steps times training.batch_size should be at most {MOST_SAMPLES:,} samples")
    return experiment


def _renamed(section: str, values: Any) -> Any:
    """A section with its old keys under their present names."""
    names = RENAMED.get(section)
    if names is None or not isinstance(values, Mapping):
        return values
    for old, new in names.items():
        if old in values and new in values:
            raise UserError(f"{section}.{old} is now called {section}.{new}; write one of them")
    return {names.get(key, key): value for key, value in values.items()}


def _check_section(section: str, values: Any) -> None:
    if not isinstance(values, Mapping):
        raise UserError(f"{section} is a section, not a value; write [{section}] and keys below it")
    keys = section_keys()
    if section in keys:
        check_keys(section, values, keys[section], [f"{name}.{key}" for name, known in keys.items() for key in known])


def section_keys() -> dict[str, list[str]]:
    """The keys of every section whose keys do not depend on a name in it."""
    models = {name: field.annotation for name, field in Experiment.model_fields.items()}
    sections = {name: model for name, model in models.items() if isinstance(model, type) and issubclass(model, Section)}
    return {name: list(model.model_fields) for name, model in sections.items()}


def load_experiment(
    path: str | os.PathLike[str] | None,
    overrides: Sequence[str] = (),
    plugins: Sequence[str | os.PathLike[str]] = (),
) -> Experiment:
    """An experiment from a TOML file.

    Args:
        path: The file; None for the default experiment.
        overrides: Keys to change, each as ``section.key=value``.
        plugins: Python files to import besides those that the file names, which are relative to its folder.

    Returns:
        The experiment, checked key by key. Nothing is imported yet.

    Raises:
        UserError: If the file cannot be read, or naming the first thing that is wrong in it.

    >>> load_experiment(None, ["training.rounds=5"]).training.rounds
    5
    """
    table: dict[str, Any] = {}
    if path is not None:
        table = read_toml(Path(path))
    known = [f"{section}.{key}" for section, keys in section_keys().items() for key in keys]
    for section, values in overrides_by_section(overrides, known).items():
        if section in LISTS:
            raise UserError(f"--set cannot change {section}; {LISTS[section]}")
        if not isinstance(table.setdefault(section, {}), dict):
            raise UserError(f"{section} is a section, not a value; write [{section}] and keys below it")
        table[section] = {**_renamed(section, table[section]), **_renamed(section, values)}
    experiment = parse(table)
    folder = Path() if path is None else Path(path).parent
    files = [*(folder / Path(plugin).expanduser() for plugin in experiment.plugins), *plugins]
    return experiment.with_plugins(files)
