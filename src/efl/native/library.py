"""Inner loops in C, built when the package is installed: which of the libraries the processor takes.

An operation of PyTorch costs microseconds before it computes anything, and a training step of a small network is
dozens of them. There is a library for each instruction set; where there is none, as after an installation without a C
compiler, everything works without, more slowly.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from efl.native.bindings import Loops

LEVELS = ("baseline", "avx2", "avx512")  # each needs what those before it do, and more
VARIABLE = "EFL_NATIVE"  # forces one of them, or NONE
NONE = "none"
FOLDER = Path(__file__).with_name("lib")  # no package, so that nobody takes the libraries for modules


class NotCompiledError(Exception):
    """There is no library; why, in one line."""


def loops() -> Loops:
    """The compiled loops; `NotCompiledError` where they cannot be had."""
    found = _attempt()
    if isinstance(found, str):
        raise NotCompiledError(found)
    return found


def loaded() -> Loops | None:
    """The compiled loops, or None where they cannot be had."""
    found = _attempt()
    return None if isinstance(found, str) else found


def available() -> list[str]:
    """The levels that are installed and that this processor has, best last; `NotCompiledError` if there are none."""
    best: int = _opened(LEVELS[0]).efl_level()
    return [level for level in LEVELS[: best + 1] if _path(level).exists()]


def load(level: str) -> Loops:
    """The loops of one of the `available` levels; `NotCompiledError` if it is none."""
    if level not in LEVELS:
        raise NotCompiledError(f"{level!r} is none of the levels {', '.join(LEVELS)}")
    if level not in available():
        raise NotCompiledError(f"this processor, or this installation, does not have {level}")
    return Loops(_opened(level))


@cache
def _attempt() -> Loops | str:
    """The loops, or why there are none; tried once in a process."""
    wanted = os.environ.get(VARIABLE)
    if wanted == NONE:
        return f"{VARIABLE} is {NONE}"
    try:
        return load(wanted or available()[-1])
    except NotCompiledError as problem:
        return f"{VARIABLE}: {problem}" if wanted else str(problem)


def _opened(level: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(_path(level)))
    except OSError as error:
        if _path(level).exists():
            raise NotCompiledError(f"the C code cannot be loaded: {error}") from None
        raise NotCompiledError("elastic-fl was installed without its C code") from None


def _path(level: str) -> Path:
    return FOLDER / f"loops-{level}.so"
