"""The tasks known by the names of their losses. A module of this package registers its own."""

from __future__ import annotations

from typing import Any

from efl.plugins import Registry
from efl.training.tasks.base import Task


def _task(thing: Any) -> type[Task] | None:
    return thing if isinstance(thing, type) and issubclass(thing, Task) else None


TASKS: Registry[type[Task]] = Registry("task", _task, built_in="efl.training.tasks")
