"""Things known by name, and how to add your own without editing the package.

Each kind of thing (algorithm, model, data set, …) has one `Registry`, kept beside the things themselves. A name is
looked up among the built-in and registered things, then among the entry points of installed packages (group
``efl.algorithms``, ``efl.models``, …); last, it may be an import path, ``package.module:Class``.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints, overload

from efl.errors import UserError, line_in, reason

T = TypeVar("T")
Thing = TypeVar("Thing")

# Where the registry of each kind is; imported when first needed. To add a kind, add a line.
REGISTRIES = {
    "algorithm": "efl.algorithms.registry:ALGORITHMS",
    "transform": "efl.algorithms.transform:TRANSFORMS",
    "codec": "efl.algorithms.compression.codec:CODECS",
    "dataset": "efl.federation.sources.registry:SOURCES",
    "model": "efl.models.registry:NETWORKS",
    "tracker": "efl.track.trackers:TRACKERS",
    "task": "efl.training.tasks.registry:TASKS",
    "metric": "efl.training.tasks.metrics:METRICS",
    "optimiser": "efl.training.optimisers:OPTIMISERS",
}
_NAME = re.compile(r"[\w-]+")


class Registry(Generic[T]):
    """The things of one kind, by name.

    Args:
        kind: What they are, such as ``algorithm``; the entry-point group is ``efl.`` and its plural.
        convert: Turns what a user registers into what the registry holds, or returns None for anything else.
        recognise: Whether `register` may take a thing for this kind by itself; by default if ``convert`` does.
        built_in: A package whose modules register the built-in things when they are imported.

    >>> colours = Registry("colour", lambda thing: thing if isinstance(thing, str) else None)
    >>> colours.register("red", "#f00")
    '#f00'
    >>> colours.get("rad")
    Traceback (most recent call last):
    efl.errors.UserError: unknown colour 'rad'; did you mean 'red'?
    """

    _discovering = threading.RLock()  # of all registries: while one thread imports built-in things, others wait

    def __init__(
        self,
        kind: str,
        convert: Callable[[Any], T | None],
        recognise: Callable[[Any], bool] | None = None,
        built_in: str = "",
    ) -> None:
        self.kind, self.group, self._convert = kind, f"efl.{kind}s", convert
        self.recognises = recognise or (lambda thing: convert(thing) is not None)
        self._undiscovered, self._things, self._given = built_in, dict[str, T](), dict[str, Any]()

    @overload
    def register(self, name: str, thing: Thing) -> Thing: ...

    @overload
    def register(self, name: str) -> Callable[[Thing], Thing]: ...

    def register(self, name: str, thing: Any = None) -> Any:
        """Add a thing; without one, return a decorator that does.

        Raises:
            UserError: If the name is not a plain word, is taken by something else, or the thing is of another kind.
        """
        if thing is None:
            return lambda decorated: self.register(name, decorated)
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} cannot be the name of a {self.kind}; use letters, digits, - and _")
        taken = self._given.get(name)
        if taken is not None and not _same_definition(taken, thing):
            raise UserError(f"there already is a {self.kind} {name!r}, {_described(taken)}; choose another name")
        self._things[name], self._given[name] = self._converted(thing, _described(thing)), thing
        return thing

    def get(self, name: str) -> T:
        """The thing of this name, or at this import path.

        Raises:
            UserError: If there is none, or it cannot be imported.
        """
        self.discover()
        if name in self._things:
            return self._things[name]
        for point in entry_points(group=self.group):
            if point.name == name:
                self._things[name] = self._loaded(point)
                return self._things[name]
        if (thing := _imported(name)) is None:
            raise UserError(self._unknown(name))
        return self._converted(thing, name)

    def split(self, name: str) -> tuple[T, str]:
        """What a name such as ``efl:paper`` stands for, and what follows its colon; an import path has nothing more."""
        plain, _, rest = name.partition(":")
        if rest and plain not in self and _imported(name) is not None:
            return self.get(name), ""
        return self.get(plain), rest

    def names(self) -> list[str]:
        """All names: built-in ones, registered ones, those of installed packages."""
        self.discover()
        return list(dict.fromkeys([*self._things, *(point.name for point in entry_points(group=self.group))]))

    def items(self) -> Iterator[tuple[str, T]]:
        """All names and what they stand for."""
        return ((name, self.get(name)) for name in self.names())

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def discover(self) -> None:
        """Import the built-in things, unless that has been done."""
        with self._discovering:
            package, self._undiscovered = self._undiscovered, ""
            if package:
                for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
                    importlib.import_module(module.name)
                self._things = dict(sorted(self._things.items()))  # whatever was imported first

    def _loaded(self, point: EntryPoint) -> T:
        try:
            return self._converted(point.load(), point.value)
        except Exception as error:  # whatever the other package does
            raise UserError(f"{self.kind} {point.name!r} ({point.value}) cannot be loaded: {reason(error)}") from None

    def _converted(self, thing: Any, what: str) -> T:
        if (converted := self._convert(thing)) is None:
            raise UserError(f"{what} is not a {self.kind}")
        return converted

    def _unknown(self, name: str) -> str:
        names = self.names()
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names)}"
        return f"unknown {self.kind} {name!r}; {hint}"


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: setattr(Registry, "_discovering", threading.RLock()))


def registry(kind: str) -> Registry[Any]:
    """The registry of a kind of thing."""
    if kind not in REGISTRIES:
        raise UserError(f"unknown kind {kind!r}; choose one of: {', '.join(REGISTRIES)}")
    module, name = REGISTRIES[kind].split(":")
    found: Registry[Any] = getattr(importlib.import_module(module), name)
    found.discover()
    return found


@overload
def register(name: str, thing: Thing, *, kind: str | None = None) -> Thing: ...


@overload
def register(name: str, *, kind: str | None = None) -> Callable[[Thing], Thing]: ...


def register(name: str, thing: Any = None, *, kind: str | None = None) -> Any:
    """Make an algorithm, model, data set or other thing of yours known by name.

    Experiment files, the command and `efl.train` can then use the name. To have a file of such calls imported, pass it
    to the command with ``--plugin FILE``.

    Args:
        name: The name; letters, digits, ``-`` and ``_``.
        thing: What it stands for. Left out, the call is a decorator.
        kind: ``algorithm``, ``model``, ``dataset``, …; by default what the thing is: a subclass of `Algorithm`, a
            function annotated to return an ``nn.Module`` or a `Federation`, and so on.

    Returns:
        The thing itself, or the decorator.

    Raises:
        UserError: If the name is taken by something else, or the kind is unclear.

    >>> from torch import nn
    >>> @register("tiny")
    ... def tiny(spec) -> nn.Module:
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(64, spec.classes))
    """
    if thing is None:
        return lambda decorated: register(name, decorated, kind=kind)
    if kind is not None:
        return registry(kind).register(name, thing)
    fitting = [found for found in map(registry, REGISTRIES) if found.recognises(thing)]
    if len(fitting) != 1:
        raise UserError(
            f"{_described(thing)}: say what it is, efl.register({name!r}, …, kind={' | '.join(REGISTRIES)})"
        )
    return fitting[0].register(name, thing)


_plugins: set[Path] = set()


def load_plugin(path: str | os.PathLike[str]) -> Path:
    """Import a Python file outside the package, so that its `register` calls run; once per process.

    Args:
        path: The file.

    Returns:
        Its absolute path.

    Raises:
        UserError: If there is no such file, or it does not run.
    """
    file = Path(os.path.abspath(os.path.expanduser(path)))
    if file in _plugins:
        return file
    name = f"efl_plugin_{zlib.crc32(str(file).encode()):08x}_{file.stem}"  # the same in every process, for pickles
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"plugin {path}: not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the file does
        del sys.modules[name]
        if not file.is_file():
            raise UserError(f"plugin {path}: no such file") from None
        raise UserError(f"plugin {path}{line_in(error, file)}: {reason(error)}") from None
    _plugins.add(file)
    return file


def loaded_plugins() -> list[Path]:
    """The plugin files that this process has imported."""
    return sorted(_plugins)


def returns(thing: Any) -> type | None:
    """The class that a function is annotated to return, if it is."""
    try:
        found = get_type_hints(thing).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    return found if isinstance(found, type) else None


def _imported(path: str) -> Any:
    """What is at ``package.module:Class``; None if there is no such module."""
    module, _, name = path.partition(":")
    if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        return None
    try:
        if importlib.util.find_spec(module) is None:
            return None
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None
        raise UserError(f"{path} cannot be imported: {reason(error)}") from None
    except Exception as error:  # whatever the module does
        raise UserError(f"{path} cannot be imported: {reason(error)}") from None
    if found is None:
        raise UserError(f"{path}: module {module} has no {name}")
    return found


def _same_definition(one: Any, other: Any) -> bool:
    """Whether it is the same object, or the same piece of code run again, as in a notebook."""
    place, again = [(getattr(x, "__module__", None), getattr(x, "__qualname__", None)) for x in (one, other)]
    return one is other or (None not in place and place == again)


def _described(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None)
    return f"{thing.__module__}.{name}" if name else f"a {type(thing).__name__}"
