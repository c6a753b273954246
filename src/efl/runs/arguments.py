"""Whether what a user passes in Python is of the right kind; what is not is one line, with what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Dataset

from efl.errors import UserError
from efl.federation import Federation
from efl.fleet import Fleet

HOOKS = ("start", "round", "end")


def check_kinds(federation: Any = None, model: Any = None, fleet: Any = None) -> None:
    """Raise `UserError` unless these are a federation, a module and a fleet; names and None are left to others."""
    if not isinstance(federation, Federation | str | None):
        raise UserError(f"federation: pass {_federation(federation)}, not {_kind(federation)}")
    if not isinstance(model, nn.Module | str | None):
        remedy = f"{model.__name__}(…), a module" if isinstance(model, type) else "an nn.Module, or a network's name"
        raise UserError(f"model: pass {remedy}, not {_kind(model)}")
    if not isinstance(fleet, Fleet | None):
        settings = ", ".join(f"{name}={value!r}" for name, value in fleet.items()) if isinstance(fleet, dict) else "…"
        raise UserError(f"fleet: pass efl.Fleet({settings}), not {_kind(fleet)}")


def checked_callbacks(callbacks: Any) -> list[Any]:
    """The callbacks as a list; `UserError` if they are none."""
    if not isinstance(callbacks, Iterable):
        raise UserError(f"callbacks: pass a list of them, callbacks=[…], not {_kind(callbacks)}")
    found = list(callbacks)
    for one in found:
        if isinstance(one, type):
            raise UserError(f"callbacks: pass {one.__name__}(…), an object, not {_kind(one)}")
        if not all(callable(getattr(one, hook, None)) for hook in HOOKS):
            raise UserError(
                f"callbacks: {_kind(one)} is none; derive a class from efl.Callback and pass an object of it"
            )
    return found


def _federation(given: Any) -> str:
    """How to make a federation of what was given in place of one."""
    if isinstance(given, list):
        return "efl.Federation.from_clients([(x, y), …]) or efl.Federation.from_datasets([…])"
    if isinstance(given, Dataset | DataLoader):
        return "efl.Federation.from_dataset(dataset, clients=…)"
    return "efl.Federation.from_tensors(x, y, clients=…), or the name of a data set"


def _kind(given: Any) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}"
    name = type(given).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
