"""Settings that check themselves, with errors of one line."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, fields
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Self, dataclass_transform, get_type_hints

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from efl.errors import UserError
from efl.reading import DamagedError, parse_toml, read_text, readable

LARGEST_FILE = 2**24  # bytes of a settings file
MOST = 10**9  # of anything that is counted
# What real settings are between, so that single precision can compute with them.
SMALLEST, LARGEST = 1e-30, 1e30


def _not_tiny(value: float) -> float:
    if value < SMALLEST:
        raise ValueError(f"input should be at least {SMALLEST:g}")
    return value


def _not_huge(value: float) -> float:
    if LARGEST < value < math.inf:
        raise ValueError(f"input should be at most {LARGEST:g}, or inf")
    return value


Probability = Annotated[float, Field(ge=0, le=1)]
Density = Annotated[float, Field(gt=0, le=1), AfterValidator(_not_tiny)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False), AfterValidator(_not_tiny)]
AtLeastOne = Annotated[float, Field(ge=1), AfterValidator(_not_huge)]  # infinity is no limit
Count = Annotated[int, Field(ge=1, le=MOST)]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True)
class Settings:
    """Subclasses are frozen dataclasses whose fields are checked against their types when one is made.

    >>> from efl.algorithms import FedProx
    >>> FedProx(proximity=-1)
    Traceback (most recent call last):
    efl.errors.UserError: proximity: input should be greater than or equal to 0, got -1
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)
        for name in ("__setattr__", "__delattr__"):  # those below do; a decorator on the subclass may add its own
            delattr(cls, name)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keys that do not exist are refused with the one that was probably meant."""
        if not kwargs:  # as when it is unpickled
            return super().__new__(cls)
        known = signature(cls.__init__).parameters.values()
        names = [one.name for one in known][1:]
        for key in kwargs:
            if key not in names and all(one.kind is not one.VAR_KEYWORD for one in known):
                raise UserError(f"{cls.__name__}: {unknown_key(key, names)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, adapter in _adapters(type(self)).items():
            try:
                value = adapter.validate_python(getattr(self, name))
            except ValidationError as error:
                raise UserError(one_line(error, name)) from None
            object.__setattr__(self, name, value)


def _refuse(self: Settings, name: str, value: Any = None) -> None:
    raise FrozenInstanceError(f"cannot change {name}")


Settings.__setattr__ = Settings.__delattr__ = _refuse  # type: ignore[assignment]

_known_adapters: dict[type[Settings], dict[str, TypeAdapter[Any]]] = {}


def _adapters(cls: type[Settings]) -> dict[str, TypeAdapter[Any]]:
    if cls not in _known_adapters:
        hints = get_type_hints(cls, include_extras=True)
        _known_adapters[cls] = {one.name: TypeAdapter(hints[one.name]) for one in fields(cls)}
    return _known_adapters[cls]


def make(cls: type[Settings], values: Mapping[str, Any], where: str) -> Settings:
    """A ``cls`` from named values, as read from a file; ``where`` names their section in messages."""
    check_keys(where, values, [one.name for one in fields(cls)])
    try:
        return cls(**values)
    except UserError as error:
        raise UserError(f"{where}.{error}") from None


# What other libraries call a key, and its name here.
SYNONYMS = {
    **dict.fromkeys(("lr", "eta", "client_lr", "local_lr", "step_size"), "learning_rate"),
    **dict.fromkeys(("optimizer", "opt", "client_optimizer"), "optimiser"),
    **dict.fromkeys(("epoch", "epochs", "local_epochs", "num_epochs", "n_epochs", "iterations"), "local_steps"),
    **dict.fromkeys(("num_rounds", "n_rounds", "global_rounds", "communication_rounds", "max_rounds"), "rounds"),
    "max_epochs": "rounds",
    **dict.fromkeys(("num_clients", "n_clients", "num_partitions"), "clients"),
    **dict.fromkeys(("clients_per_round", "cohort_size", "sample_size", "fraction_fit"), "cohort"),
    **dict.fromkeys(("batch", "bs", "batchsize", "train_batch_size"), "batch_size"),
    **dict.fromkeys(("scheduler", "lr_scheduler", "lr_schedule"), "schedule"),
    **dict.fromkeys(("random_seed", "random_state"), "seed"),
    **dict.fromkeys(("eval_every", "eval_freq", "evaluation_frequency"), "evaluate_every"),
    **dict.fromkeys(("num_workers", "n_jobs", "processes"), "workers"),
    **dict.fromkeys(("loss_fn", "criterion"), "loss"),
    **dict.fromkeys(("mu", "prox_mu", "proximal_mu"), "proximity"),
    **dict.fromkeys(("data", "data_set"), "dataset"),
    "metric": "metrics",
    "lr_decay": "decay",
}
# What else there is to say about a key.
REMARKS = {
    **dict.fromkeys(("epoch", "epochs", "local_epochs", "num_epochs", "n_epochs"), "work is counted in SGD steps"),
    "max_epochs": "what a client does in a round is training.local_steps",
    "learning_rate": "the learning rate is training.learning_rate, whatever the optimiser",
    **dict.fromkeys(
        ("momentum", "weight_decay", "nesterov", "betas"),
        "it belongs to the optimiser, such as optimiser=efl.SGD(momentum=0.9), or training.optimiser.name and the rest",
    ),
    **dict.fromkeys(
        ("stragglers", "straggler_steps", "inactive", "lost"),
        "it belongs to the fleet: efl.Fleet(stragglers=…), or the section [fleet] of a file",
    ),
    **dict.fromkeys(("observers", "early_stopping"), "pass callbacks=[…] to efl.train, such as efl.EarlyStopping()"),
}


def check_keys(where: str, values: Iterable[str], known: Iterable[str], others: Iterable[str] = ()) -> None:
    """Raise `UserError` for the first unknown key of section ``where``; ``others`` are keys of other sections."""
    known = list(known)
    for key in values:
        if key not in known:
            raise UserError(unknown_key(f"{where}.{key}", [f"{where}.{name}" for name in known], others))


def unknown_key(key: str, known: Iterable[str], others: Iterable[str] = ()) -> str:
    """The line for a key that does not exist, with the one that was probably meant.

    >>> unknown_key("training.lr", ["training.rounds", "training.learning_rate"])
    'unknown key training.lr; did you mean training.learning_rate?'
    >>> unknown_key("training.clients", ["training.rounds"], ["federation.clients"])
    'unknown key training.clients; did you mean federation.clients?'
    """
    known, name = list(known), _last(key)
    remark = f" ({REMARKS[name]})" if name in REMARKS else ""
    for candidates in (known, list(others)):
        names = {_last(candidate): candidate for candidate in reversed(candidates)}
        meant = SYNONYMS.get(name.lower(), name)
        near = [meant] if meant in names else difflib.get_close_matches(name, names, 1) if candidates is known else []
        if near:
            return f"unknown key {key}; did you mean {names[near[0]]}?{remark}"
    listed = f"known keys: {', '.join(known)}"
    return f"unknown key {key}; {REMARKS.get(name) or REMARKS.get(SYNONYMS.get(name.lower(), name)) or listed}"


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def one_line(error: ValidationError, where: str = "") -> str:
    """The first complaint of pydantic as one line; for a choice between types, the first of them speaks."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if isinstance(part, str) and part.isidentifier() and part.islower()]
    location = ".".join([where, *path] if where else path)
    message = first["msg"].removeprefix("Value error, ")
    text = f"{location}: {message[:1].lower()}{message[1:]}"
    return text if "got" in text else f"{text}, got {first['input']!r}"


def overrides_by_section(overrides: Sequence[str], known: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """What ``section.key=value`` settings say; one without a section may mean a ``known`` key.

    >>> overrides_by_section(["training.rounds=5", "training.seed=1", "algorithm.name=efl"])
    {'training': {'rounds': 5, 'seed': 1}, 'algorithm': {'name': 'efl'}}
    """
    table: dict[str, dict[str, Any]] = {}
    for override in overrides:
        section, key, value = _parse_override(override, known)
        table.setdefault(section, {})[key] = value
    return table


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    with readable(path):
        text = read_text(path, LARGEST_FILE)
    try:
        return parse_toml(text)
    except DamagedError as error:
        raise UserError(f"{path}: {error}") from None


def _parse_override(text: str, known: Iterable[str]) -> tuple[str, str, Any]:
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if equals and not dot:
        names = {_last(one): one for one in reversed(list(known))}
        if meant := names.get(SYNONYMS.get(section.lower(), section)):
            raise UserError(f"--set {text}: the key has a section; write --set {meant}={value.strip()}")
    if not (equals and dot and section and key):
        raise UserError(f"--set {text}: write section.key=value, such as --set training.rounds=50")
    try:
        return section, key, parse_toml(f"value = {value}")["value"]
    except DamagedError:
        return section, key, value.strip()  # a bare word is a string
