"""The files publishers give out, wherever below a directory they lie: plain, gzipped, or in a .zip or .tar archive."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from efl.errors import UserError

DEPTH = 4
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
IDX_BYTES = 8  # the idx type code of unsigned bytes, the only one these data sets use


class MissingDataError(UserError):
    """The files of a data set are not where they were looked for."""


@dataclass(frozen=True)
class RawFile:
    """A publisher's file: its name, where it was found, and what is in it, unpacked."""

    name: str
    where: str
    data: bytes


def find(directory: Path, *names: str) -> RawFile:
    """The first of ``names`` that is there; `UserError` if none is."""
    for name in names:
        for found in find_all(directory, name):
            return found
    raise MissingDataError(f"{directory} has no {' or '.join(names)}, as a file, gzipped or in an archive")


def has(directory: Path, name: str) -> bool:
    """Whether `find` would find it; archives are looked into, but not unpacked."""
    return next(_places(directory, name), None) is not None


def find_all(directory: Path, name: str) -> Iterator[RawFile]:
    """Every file below ``directory`` whose name, a leading ``*`` standing for anything, is ``name`` or ``name.gz``."""
    for path, member in _places(directory, name):
        where = str(path) if member is None else f"{path}, {member}"
        try:
            data = path.read_bytes() if member is None else _member(path, member)
            inner = member or path.name
            if inner.endswith(".gz"):
                data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
            raise UserError(f"{where} is damaged or cannot be read ({error}); fetch it again") from None
        yield RawFile(inner.rpartition("/")[2].removesuffix(".gz"), where, data)


def _places(directory: Path, name: str) -> Iterator[tuple[Path, str | None]]:
    files = list(_files(directory))
    for path in files:
        if _matches(path.name, name):
            yield path, None
    for path in files:
        if path.name.endswith(ARCHIVES):
            for member in _members(path):
                if _matches(member.rpartition("/")[2], name):
                    yield path, member


def _matches(found: str, wanted: str) -> bool:
    found = found.removesuffix(".gz")
    return found.endswith(wanted[1:]) if wanted.startswith("*") else found == wanted


def _files(directory: Path) -> Iterator[Path]:
    """Files not too deep below, those nearer first."""
    if not directory.is_dir():
        raise MissingDataError(f"{directory} is no directory")
    level = [directory]
    for _ in range(DEPTH):
        below: list[Path] = []
        for folder in level:
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError as error:
                raise UserError(f"{folder} cannot be read ({error.strerror})") from None
            for entry in entries:
                if entry.is_dir():
                    below.append(Path(entry.path))
                else:
                    yield Path(entry.path)
        level = below


def _members(path: Path) -> list[str]:
    try:
        if path.name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                return archive.namelist()
        with tarfile.open(path) as tar:
            return [member.name for member in tar if member.isfile()]
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UserError(f"{path} is damaged or cannot be read ({error}); fetch it again") from None


def _member(path: Path, member: str) -> bytes:
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            return archive.read(member)
    with tarfile.open(path) as tar:
        file = tar.extractfile(member)
        assert file is not None
        return file.read()


def read_idx(file: RawFile, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes in the idx format of MNIST: magic number, sizes, data."""
    data = file.data
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, IDX_BYTES, dimensions]):
        raise UserError(f"{file.where} is no idx file of {dimensions} dimension(s): wrong magic number")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", dimensions, 4))
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(data) != expected:
        sizes = " × ".join(map(str, shape))
        raise UserError(f"{file.where} should have {expected:,} bytes for {sizes} values, but has {len(data):,}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def verify(file: RawFile, digest: str) -> None:
    """Refuse a file that is not the published one; ``digest`` is its ``algorithm:hexadecimal`` sum, unpacked."""
    algorithm, _, expected = digest.partition(":")
    found = hashlib.new(algorithm, file.data, usedforsecurity=False).hexdigest()
    if found != expected:
        raise UserError(
            f"{file.where} is not the published {file.name}: "
            f"its {algorithm.upper()} sum is {found[:12]}…, expected {expected[:12]}…"
        )
