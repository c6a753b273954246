"""Writing files so that a reader never sees half of one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to; what is there at the end of the block becomes ``path``, at once and for good.

    If the block fails, or the machine stops in between, ``path`` is what it was before.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
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


def _umask() -> int:
    """The user's wish about who may read their files; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``path`` whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_bytes(data)
