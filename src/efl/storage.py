"""Files that a reader never sees half of, and that are known to be what was written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zlib_ng.zlib_ng import crc32

if TYPE_CHECKING:  # the command answers `--help` without loading PyTorch
    from numpy.typing import NDArray
    from torch import Tensor


PART = ".part"  # how the names of files end that are being written


def cache_path() -> str:
    """The user's folder for what can be made again; ``~`` is not spelt out, for not every user has a home."""
    return f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/efl"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to; what is there at the end of the block becomes ``path``, at once and for good.

    If the block fails, or the machine stops in between, ``path`` is what it was before.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    _clear_up(path)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _clear_up(path: Path) -> None:
    """Remove what processes that were killed in the middle of writing ``path`` have left."""
    for left in path.parent.glob(f"{escape(path.name)}.*{PART}"):
        writer = left.name.removeprefix(f"{path.name}.").removesuffix(PART)
        if writer.isdecimal() and not _is_running(int(writer)):
            left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _umask() -> int:
    """The user's wish about who may read their files; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``path`` whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(data)


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The notes and tensors of a safetensors file; `SafetensorError` or `OSError` if it cannot be read."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict


def checksum(array: NDArray[Any], start: int = 0) -> int:
    """CRC-32 of an array's bytes, going on from ``start``; makes no copy of them."""
    import numpy as np

    return crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, start)
