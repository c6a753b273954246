"""Files that a reader never sees half of, and that are known to be what was written."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_cache_path
from zlib_ng.zlib_ng import crc32

from efl.errors import UserError, first_line
from efl.reading import QUOTED, DamagedError, opened, parse_json

if TYPE_CHECKING:  # the command answers `--help` without loading PyTorch
    from numpy.typing import NDArray
    from torch import Tensor


FORMAT = 6  # of state files; format 4 is that of elastic-fl 0.1, in formats 4 and 5 a checksum covers less
SEPARATOR = "/"  # between the keys of a nested state in a tensor's name
State = dict[str, Any]  # nested, of tensors and of what JSON has
Upgrade = Callable[[dict[str, Any], "dict[str, Tensor]"], State]
TENSORS_ALONE = 5  # the format before, whose checksum covers them and the values alone
LARGEST_FILE = 2**40  # bytes
POSIX = os.name == "posix"
PART = ".part"  # how the names of files end that are being written


def cache_path() -> Path:
    """The user's folder for what can be made again."""
    try:
        return user_cache_path("efl", appauthor=False)
    except RuntimeError as error:  # not every user has a home
        raise UserError(f"there is no folder for caches: {first_line(error)}") from None


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to; what is there at the end of the block becomes ``path``, at once and for good.

    If the block fails, or the machine stops in between, ``path`` is what it was before.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    _clear_up(path)
    try:
        yield temporary
        with open(temporary, "rb" if POSIX else "r+b") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if POSIX:  # on Windows folders cannot be opened
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
    if not POSIX:  # there, asking would end it
        return True
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
    """The notes and tensors of a safetensors file; `DamagedError` or `OSError` if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    with opened(path, LARGEST_FILE):  # sees that it is a file
        pass
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError, TypeError, RuntimeError, KeyError, AttributeError) as error:
        raise DamagedError(first_line(error)[:QUOTED]) from None


def description(notes: Mapping[str, str], tensors: Mapping[str, Tensor]) -> bytes:
    """All that a file of tensors says but their bytes: its notes, and the names, types and shapes of the tensors."""
    kinds = [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in sorted(tensors.items())]
    return json.dumps([sorted(notes.items()), kinds]).encode()


def digest(notes: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """A SHA-256 of everything in a file of tensors."""
    found = hashlib.sha256()
    about = description(notes, tensors)
    found.update(struct.pack("<Q", len(about)) + about)
    for name in sorted(tensors):
        found.update(_memory(tensors[name]))
    return found.hexdigest()


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a nested state of tensors and JSON values into one file, atomically, with a checksum.

    Args:
        path: The file.
        state: Dictionaries of tensors, of what JSON has, and of further such dictionaries.

    Example:
        >>> import tempfile, torch
        >>> path = Path(tempfile.mkdtemp()) / "state.safetensors"
        >>> write_state(path, {"round": 3, "server": {"w": torch.ones(2)}})
        >>> read_state(path)
        {'round': 3, 'server': {'w': tensor([1., 1.])}}
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    values = json.dumps(_without_tensors(state, "", tensors))
    notes = {"format": FORMAT, "written_by": f"elastic-fl {_version()}"}
    texts = {"notes": json.dumps(notes), "values": values}
    write_atomically(path, save(tensors, texts | {"sha256": digest(texts, tensors)}))


def read_state(path: Path, upgrades: Mapping[int, Upgrade] | None = None) -> State:
    """Read what `write_state` wrote.

    Args:
        path: The file.
        upgrades: For each older format that is understood, a function of the file's notes and tensors to the state.

    Returns:
        The nested state.

    Raises:
        UserError: Another version of elastic-fl wrote the file, in a format that is not understood.
        DamagedError: The file is damaged.
        OSError: It cannot be read.
    """
    texts, tensors = read_tensors(path)
    notes = parse_json(texts.get("notes", ""))
    format_ = notes.get("format") if isinstance(notes, dict) else None
    if type(format_) is not int:
        raise DamagedError("it says not what format it has")
    if format_ not in {FORMAT, TENSORS_ALONE, *(upgrades or {})}:
        writer = notes.get("written_by", "elastic-fl 0.1")
        raise UserError(f"{path} was written by {writer} (format {format_}); this version cannot read it")
    values = texts.get("values", "")
    if format_ == FORMAT:
        matches = texts.pop("sha256", "") == digest(texts, tensors)
    else:
        matches = "sha256" not in texts and notes.get("sha256") == _sha256(tensors, values)
    if not matches:
        raise DamagedError("checksum does not match")
    if upgrades and format_ in upgrades:
        return upgrades[format_](notes, tensors)
    state: State = parse_json(values)
    for name, tensor in tensors.items():
        *parents, key = name.split(SEPARATOR)
        inner = state
        for parent in parents:
            inner = inner[parent]
        inner[key] = tensor
    return state


def _without_tensors(state: Mapping[str, Any], prefix: str, tensors: dict[str, Tensor]) -> State:
    """The state without its tensors, which are put into ``tensors`` by their path."""
    import torch

    rest: State = {}
    for key, value in state.items():
        if SEPARATOR in key:
            raise ValueError(f"a key of a state may not have a {SEPARATOR!r}: {key!r}")
        if isinstance(value, torch.Tensor):
            tensors[prefix + key] = value.contiguous()
        elif isinstance(value, Mapping):
            rest[key] = _without_tensors(value, f"{prefix}{key}{SEPARATOR}", tensors)
        else:
            rest[key] = value
    return rest


def _sha256(tensors: Mapping[str, Tensor], values: str) -> str:
    """What formats 4 and 5 have: it covers neither types nor shapes, nor notes."""
    found = hashlib.sha256(values.encode())
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(_memory(tensors[name]))
    return found.hexdigest()


def _version() -> str:
    return str(sys.modules["efl"].__version__)


def checksum(array: NDArray[Any], start: int = 0) -> int:
    """CRC-32 of an array's bytes, going on from ``start``; makes no copy of them."""
    import numpy as np

    return crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, start)


def _memory(tensor: Tensor) -> memoryview:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
