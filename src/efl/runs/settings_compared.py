"""The settings a run was started with, kept in its checkpoints: a run goes on with those, or says what is different."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from efl.config import CUSTOM
from efl.errors import UserError
from efl.runs.setup import Setup

# What may change while a run is stopped: for how long it goes on, what is measured and kept, and how it is computed.
FREE_SECTIONS = ("plugins", "engine", "track", "network")
FREE = {
    "federation": ("data_dir",),
    "training": (
        "rounds", "target", "target_accuracy", "metrics", "evaluate_every", "evaluate_personalised_every",
    ),
}  # fmt: skip
QUOTED = 60  # characters of a value that a message shows
ABSENT = object()


def settings_of(setup: Setup) -> dict[str, Any]:
    """All settings that the model depends on, as JSON has them; those that are not set are None."""
    table = setup.experiment.model_dump()
    for section in FREE_SECTIONS:
        del table[section]
    for section, keys in FREE.items():
        table[section] = {key: value for key, value in table[section].items() if key not in keys}
    for section, described in (("algorithm", setup.algorithm), ("fleet", setup.fleet)):
        unset = {one.name: None for one in fields(described)} if is_dataclass(described) else {}
        table[section] = unset | table[section]
    if setup.fleet.trace is not None:  # wherever its file lies; the clock knows what is in it
        table["fleet"]["trace"] = "a trace"
    plain: dict[str, Any] = json.loads(json.dumps(table, default=lambda value: CUSTOM))
    return plain


def refuse_other_settings(before: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> None:
    """Raise `UserError` if a setting is not as it was; checkpoints of earlier versions have none to compare."""
    for settings in before:
        for key, was, is_ in _differences(settings, now, ""):
            raise UserError(
                f"{key} was {_shown(was)} when the run was started, and is {_shown(is_)} in config.toml now; "
                "put it back, or start a new run"
            )


def _differences(before: Any, now: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """Where settings differ. Keys of a section that an earlier version of the program did not know are as now."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        added = now.keys() - before.keys() if "." in key or not before else set()
        for name in [*before, *sorted(added)]:
            place = f"{key}.{name}" if key else name
            yield from _differences(before.get(name, ABSENT), now.get(name, ABSENT), place)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for was, is_ in zip(before, now, strict=True):
            yield from _differences(was, is_, key)
    elif before != now:
        yield key, before, now


def _shown(value: Any) -> str:
    return "not set" if value is None or value is ABSENT else f"{value!r:.{QUOTED}}"
