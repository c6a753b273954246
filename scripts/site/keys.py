"""The reference of experiment keys: types, limits and defaults from the settings classes, meanings from their docs.

What the keys of a section mean is said in the example of docs/experiments.md, which a test keeps complete; what the
hyper-parameters of an algorithm mean, in the docstring of its class.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import griffe
from pydantic.fields import FieldInfo

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "experiments.md"
PAGE = re.compile(r"docs/(\w+)\.md")
BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}"}
KINDS = ("algorithm", "transform", "codec", "task", "optimiser")  # whose settings depend on a name
NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false", dict: "table", NoneType: "nothing"}


def page() -> str:
    """A table for every section of the experiment file."""
    from pydantic import BaseModel

    from efl.config import Experiment
    from efl.fleet import Fleet

    sections = []
    for name, field in Experiment.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            rows = [
                _row(name, key, one.annotation, one.metadata, one.default) for key, one in model.model_fields.items()
            ]
        elif name == "fleet":
            hints = get_type_hints(Fleet, include_extras=True)
            rows = [_row(name, one.name, hints[one.name], [], one.default) for one in fields(Fleet)]
        else:
            continue
        sections.append(f"## [{name}]\n\n" + _table("meaning", rows))
    return "\n\n".join(sections)


def settings_page(kind: str) -> str:
    """A section for everything of a kind that is known by name, with its settings."""
    from efl.plugins import registry

    found = sorted(registry(kind).items())
    return "\n\n".join(_settings_section(name, cls) for name, cls in found if isinstance(cls, type))


def settings_table(path: str) -> str:
    """The table of the class at a path; nothing if it has no settings."""
    module, _, name = path.rpartition(".")
    return _fields_table(getattr(importlib.import_module(module), name))


def _settings_section(name: str, cls: type) -> str:
    summary = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    presets = ", ".join(f"`{name}:{preset}`" for preset in getattr(cls, "presets", {}))
    parts = [f"### `{name}`", summary, f"Presets: {presets}." if presets else "", _fields_table(cls)]
    return "\n\n".join(part for part in parts if part)


def _fields_table(cls: type) -> str:
    hints = get_type_hints(cls, include_extras=True)
    meanings = _meanings(cls)
    rows = []
    for one in fields(cls):
        default = one.default if one.default is not MISSING else None
        if one.default_factory is not MISSING:
            default = one.default_factory()
        rows.append((f"`{one.name}`", kind_of(hints[one.name]), _value(default), meanings.get(one.name, "")))
    return _table("meaning", rows) if rows else ""


def _meanings(cls: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of its fields."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docstring = griffe.Docstring(inspect.cleandoc(base.__doc__ or ""))
        for section in docstring.parse("google", warnings=False):
            if section.kind.value in ("parameters", "attributes"):
                found |= {one.name: " ".join(one.description.split()) for one in section.value}
    return found


Row = tuple[str, str, str, str]


def _row(section: str, key: str, annotation: Any, metadata: list[Any], default: Any) -> Row:
    meaning = meanings_in_example()[section].get(key, "").replace("*", "\\*")
    return f"`{key}`", kind_of(annotation, metadata), _value(default), PAGE.sub(r"[\1](../\1.md)", meaning)


def _table(last: str, rows: list[Row]) -> str:
    lines = [f"| key | value | default | {last} |", "|---|---|---|---|"]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])


@cache
def meanings_in_example() -> dict[str, dict[str, str]]:
    """What the comments of the example say, by section and key."""
    (block,) = (
        text for text in re.findall(r"```toml\n(.*?)```", EXAMPLE.read_text(), re.DOTALL) if "[network]" in text
    )
    found: dict[str, dict[str, str]] = {section: {} for section in ("", *tomllib.loads(block))}
    section = key = ""
    for line in block.splitlines():
        if header := re.match(r"\[(\w+)\]", line):
            section, key = header[1], ""
        elif entry := re.match(r"(\w+) = .*?(?:\s# (.*))?$", line):
            key = entry[1]
            found[section][key] = entry[2] or ""
        elif key and (more := re.match(r"\s+# (.*)$", line)):
            found[section][key] += f" {more[1]}"
    return found


def kind_of(annotation: Any, metadata: Any = ()) -> str:
    """What a value may be, in words.

    >>> kind_of(Literal["auto"] | Annotated[int, FieldInfo(ge=1, le=9)])
    '`auto`, or a whole number, ≥ 1, ≤ 9'
    """
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return kind_of(inner, [*more, *metadata])
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind_of(one) for one in get_args(annotation) if one is not NoneType]
        return ", or ".join(dict.fromkeys(kinds))
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{_plain(value)}`" for value in get_args(annotation))
    bounds = _bounds(metadata)
    word = _word(annotation)
    return ", ".join([f"a {word}" if bounds or word.endswith("number") else word, *bounds])


def _word(annotation: Any) -> str:
    if get_origin(annotation) in (tuple, list):
        return "list"
    plain = get_origin(annotation) or annotation
    name = getattr(plain, "__name__", str(plain))
    return NAMES.get(plain) or ("function" if name == "Callable" else "anything" if plain is Any else f"`{name}`")


def _bounds(metadata: Any) -> list[str]:
    flat = [bound for one in metadata for bound in (one.metadata if isinstance(one, FieldInfo) else [one])]
    return [
        form.format(_number(getattr(bound, name)))
        for bound in flat
        for name, form in BOUNDS.items()
        if getattr(bound, name, None) is not None
    ]


def _number(value: float) -> str:
    exponent = len(f"{value:.0f}") - 1
    if value >= 10_000 and f"{value:.0e}" == f"1e+{exponent:02d}":
        return f"10{str(exponent).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _value(default: Any) -> str:
    return "" if default is None else f"`{_plain(default)}`"


def _plain(value: Any) -> str:
    """A value as a file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_quoted, value))}]"
    return str(value)


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else _plain(value)
