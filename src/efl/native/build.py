"""Inner loops in C, compiled for this very processor the first time they are needed, and kept for the next time.

An operation of PyTorch costs microseconds before it computes anything, and a training step of a small network is
dozens of them. Compiling takes about a second. Where there is no C compiler everything works without, more slowly.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from efl.native.bindings import Loops
from efl.storage import cache_path, write_atomically

log = logging.getLogger("efl")

NAMES = ("samples.h", "samples.c", "chain.c", "numbers.c", "sparse.c")
FILES = tuple(Path(__file__).with_name(name) for name in NAMES)
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
DIGEST = 32  # bytes
PATIENCE = 120  # seconds for the compiler


class NotCompiledError(Exception):
    """There is no library; why, in one line."""


def loops() -> Loops:
    """The compiled loops; `NotCompiledError` where they cannot be had."""
    found = _attempt()
    if isinstance(found, str):
        raise NotCompiledError(found)
    return found


def loaded() -> Loops | None:
    """The compiled loops, if somebody has asked for them before and got them."""
    found = _attempt() if _attempt.cache_info().currsize else ""
    return None if isinstance(found, str) else found


@cache
def _attempt() -> Loops | str:
    """The loops, or why there are none; tried once in a process."""
    path = _directory() / f"loops-{_fingerprint()}.so"
    if _trusted(path):
        with suppress(OSError):  # such as one that was made beside another C library
            return Loops(ctypes.CDLL(str(path)))
    if (compiler := _compiler()) is None:
        return "there is no C compiler"
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as workbench:
        made = Path(workbench, path.name)
        try:
            _compile(compiler, made)
            found = Loops(ctypes.CDLL(str(made)))
        except (OSError, subprocess.SubprocessError) as error:
            return _reason(error)
        with suppress(OSError):  # then it is compiled again the next time
            _keep(made, path)
    log.info("compiled inner loops for this processor in %.1f s", time.perf_counter() - began)
    return found


def _compile(compiler: list[str], made: Path) -> None:
    command = [*compiler, *FLAGS, *(str(file) for file in FILES if file.suffix == ".c"), "-o", str(made), "-lm"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)


def _keep(made: Path, path: Path) -> None:
    """Put it where it is looked for, with its digest at the end."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    code = made.read_bytes()
    write_atomically(path, code + hashlib.sha256(code).digest())


def _trusted(path: Path) -> bool:
    """Whether it is there as this user kept it, and only the user can write there; a damaged one ends the process."""
    try:
        kept, file, folder = path.read_bytes(), path.stat(), path.parent.stat()
    except OSError:
        return False
    if hasattr(os, "getuid") and not (file.st_uid == folder.st_uid == os.getuid() and not folder.st_mode & 0o022):
        return False
    return len(kept) > DIGEST and hashlib.sha256(kept[:-DIGEST]).digest() == kept[-DIGEST:]


def _compiler() -> list[str] | None:
    """What ``CC`` says, or one that is usually there."""
    if named := shlex.split(os.environ.get("CC", "")):
        return named
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return None if found is None else [found]


def _directory() -> Path:
    """Where compiled code is kept: nowhere, if the user has no home."""
    try:
        return Path(cache_path(), "native").expanduser()
    except RuntimeError:
        return Path(os.devnull)


def _fingerprint() -> str:
    """Changes with the source, the way it is compiled, the C library and the kind of processor."""
    about = "\0".join([*FLAGS, *platform.libc_ver(), platform.machine(), _abilities()])
    return hashlib.sha256(b"\0".join([*(file.read_bytes() for file in FILES), about.encode()])).hexdigest()[:16]


def _abilities() -> str:
    """What instructions the processor has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = [line.strip() for line in error.stderr.decode(errors="replace").splitlines() if "error" in line]
        return f"the C compiler failed: {said[0] if said else f'exit code {error.returncode}'}"
    return f"compiling failed: {error}"
