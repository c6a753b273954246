"""The reference of the Python interface: every public name once, found by reading the source.

Public is what `efl` exports, and what those of its subpackages export that the documentation speaks of. A name that
two of them export belongs to the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import keys

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGES = (
    "efl",
    "efl.algorithms",
    "efl.federation",
    "efl.fleet",
    "efl.flower",
    "efl.models",
    "efl.theory",
    "efl.wire",
)
RETURNED = ("efl.runs.result.Result",)  # not exported, but what public functions return
WITHOUT_MEMBERS = "efl.algorithms.base.Algorithm"  # subclasses override its methods, which are documented there


@cache
def package() -> griffe.Module:
    """The package as its source has it; nothing is imported."""
    loaded = griffe.load("efl", search_paths=[SOURCE])
    assert isinstance(loaded, griffe.Module)
    return loaded


@cache
def public() -> dict[str, griffe.Object]:
    """What each public name stands for, by its full name."""
    found: dict[str, griffe.Object] = {}
    for where in PACKAGES:
        module = package() if where == "efl" else package()[where.removeprefix("efl.")]
        for name, member in module.members.items():
            exported = name in map(str, module.exports) if module.exports else not name.startswith("_")
            target = _target(name, member) if exported else None
            if target is not None and target.path not in {one.path for one in found.values()}:
                found[f"{where}.{name}"] = target
    return found | {path: package()[path.removeprefix("efl.")] for path in RETURNED}


def _target(name: str, member: griffe.Object | griffe.Alias) -> griffe.Object | None:
    """What a member of a package stands for, if that is of ours; of a module, the function of its name."""
    if not isinstance(member, griffe.Alias):
        return member if member.is_function else None
    if not member.target_path.startswith("efl."):
        return None
    target = member.final_target
    same: Any = target.members.get(name) if target.is_module else target
    return same if isinstance(same, griffe.Object) else None


def page(*modules: str) -> str:
    """A section for every public name that is defined below one of these modules."""
    return "\n\n".join(_section(name, target) for name, target in _chosen(modules))


def complaints(asked: Iterable[Sequence[str]]) -> Iterator[str]:
    """Public names without a docstring, or on no page; ``asked`` are the modules of each page."""
    shown = [name for modules in asked for name, _ in _chosen(modules)]
    for name, target in public().items():
        if shown.count(name) != 1:
            yield f"{name} is on {shown.count(name)} pages of the reference"
        for path in _undocumented(target):
            yield f"{path} is public and has no docstring"


def _chosen(modules: Sequence[str]) -> Iterator[tuple[str, griffe.Object]]:
    for module in modules:
        for name, target in public().items():
            if f"{target.path}.".startswith(f"{module}.") and not _nearer(target.path, module, modules):
                yield name, target


def _nearer(path: str, module: str, modules: Sequence[str]) -> bool:
    """Whether another of these modules is meant by a path that also begins with ``module``."""
    return any(one != module and one.startswith(f"{module}.") and f"{path}.".startswith(f"{one}.") for one in modules)


def _section(name: str, target: griffe.Object) -> str:
    bases = [base.path for base in target.mro()] if isinstance(target, griffe.Class) else []
    members = "      members: false\n" if WITHOUT_MEMBERS in bases else ""
    table = keys.settings_table(target.path) if "efl.settings.Settings" in bases else ""
    if target.path.endswith(f".{target.name}.{target.name}"):  # by its short name Griffe finds the module
        return f'<a id="{name}"></a>\n\n::: {target.path}\n    options:\n      heading: {name}\n\n{table}'
    return f"::: {name}\n    options:\n      show_root_heading: true\n{members}\n{table}"


def _undocumented(target: griffe.Object) -> Iterator[str]:
    """What has no docstring: the object itself, or a public method or property of it."""
    if not target.has_docstring:
        yield target.path
    if isinstance(target, griffe.Class):
        for name, member in target.members.items():
            if not name.startswith("_") and member.is_function and not member.has_docstring:
                yield member.path
