"""An experiment: what is in its file, key by key, checked before anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from efl.errors import UserError
from efl.settings import (
    MOST,
    Count,
    NonNegative,
    Positive,
    Probability,
    check_keys,
    one_line,
    overrides_by_section,
    read_toml,
    unknown_key,
)

MOST_WORKERS, MOST_CLIENTS = 1024, 10**7
MOST_SAMPLES = 10**8  # that a client trains on in a round, repetitions counted
MOST_STEPS = 10**6  # of a client in a round; as many samples make a batch, at most
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Seconds = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]
CUSTOM = "custom"


class Section(BaseModel):
    """A section of the file; keys it does not know are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FederationSection(Section):
    """Whose data."""

    dataset: str = "digits"
    clients: Annotated[int, Field(ge=1, le=MOST_CLIENTS)] = 50
    partition: str = "auto"
    data_dir: str | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    evaluate_on: Literal["test", "validation"] = "test"


class ModelSection(Section):
    """What is trained, and what of it stays with each client, by patterns."""

    name: str = "auto"
    trainable: Patterns = ()
    personal: Patterns = ()


class TrainingSection(Section):
    """For how long, with how many, and how."""

    rounds: Count = 100
    cohort: Count = 10
    local_steps: Steps = 20
    batch_size: Steps = 20
    learning_rate: Positive = 0.1
    schedule: str = "decay"
    decay: NonNegative = 50.0
    restart: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    evaluate_every: Literal["auto"] | Count = "auto"
    evaluate_personalised_every: Literal["auto", "never"] | Count = "auto"
    target_accuracy: Probability | None = None
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    loss: str | dict[str, Any] = "auto"
    metrics: tuple[str, ...] | str = ()
    optimiser: str | dict[str, Any] = "sgd"
    warmup: Annotated[int, Field(ge=0, le=MOST)] = 0
    robust: Literal["auto", "default", "none"] = "auto"

    @property
    def aim(self) -> float | None:
        """The figure of merit at which training stops."""
        return self.target_accuracy if self.target is None else self.target


class EngineSection(Section):
    """How it is computed; the result does not depend on it, but for rounding on another device or by compiled code."""

    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST_WORKERS)] = "auto"
    rows: Literal["auto"] | Count = "auto"
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    compile: bool = True
    worker_timeout: Literal["auto"] | Positive = "auto"


class TrackSection(Section):
    """What is kept, and which trackers get every round's figures; ``trackers`` names those of plug-ins."""

    checkpoint_every: Count = 10
    tensorboard: bool = False
    mlflow: bool = False
    wandb: bool = False
    trackers: tuple[str, ...] = ()


class NetworkSection(Section):
    """How clients on other machines are dealt with; what runs on one machine takes no notice of it.

    directory
        Where the server keeps the run; if there is a run already it goes on.
    deadline, margin
        The seconds a round lasts at most, and how many of them are left to messages and to starting a client: a client
        works for no longer than the difference, and sends what it has.
    wait_for
        How many clients must have come before the first round; as many as are asked in a round by default.
    start_timeout
        The seconds after which the first round begins with fewer, if somebody is there.
    patience, rejoin
        The rounds after which a client that cannot be reached has departed; the seconds, up to the deadline, that a
        round waits for one that has just gone, to ask it again.
    share_cap
        As how many times the median's samples a client counts at most, whatever it says it has.
    norm_bound
        How many times the norm of the model (or 1, if that is more) an update may have; larger ones are refused. Other
        parts of a reply have bounds that follow from it (docs/security.md).
    """

    directory: str = "runs/flower"
    deadline: Annotated[Seconds, Field(gt=0)] = 120.0
    margin: Seconds = 15.0
    wait_for: Literal["auto"] | Count = "auto"
    start_timeout: NonNegative = 600.0
    patience: Count = 3
    rejoin: NonNegative = 30.0
    share_cap: Annotated[float, Field(ge=1)] = 10.0
    norm_bound: Positive = 10.0


class Transformation(BaseModel):
    """A [[transform]] table: a transformation's name, and its settings beside it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """All but the name."""
        return dict(self.model_extra or {})


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
