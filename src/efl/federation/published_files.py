"""The files publishers give out, wherever below a directory they lie: plain, gzipped, or in a .zip or .tar archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import math
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from efl.errors import UserError, first_line
from efl.reading import read_bytes, unpacked

DEPTH = 4  # folders within folders that are looked into
LARGEST = 2**32  # bytes of a file, packed and unpacked
MOST_MEMBERS = 10**6  # of an archive
_DAMAGE = (
    OSError, EOFError, RuntimeError, ValueError, LookupError, ArithmeticError, AttributeError, struct.error, zlib.error,
    lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError,
)  # fmt: skip
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


@dataclass(frozen=True)
class Place:
    """Where a file lies: by itself, or as a member of an archive."""

    path: Path
    member: str | None = None

    @property
    def name(self) -> str:
        """The file's name, as if it were not zipped."""
        return (self.member or self.path.name).rpartition("/")[2].removesuffix(".gz")

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}, {self.member}"

    def read(self) -> RawFile:
        """What is in it, unpacked."""
        try:
            data = read_bytes(self.path, LARGEST) if self.member is None else _member(self.path, self.member)
            if (self.member or self.path.name).endswith(".gz"):
                with gzip.open(io.BytesIO(data)) as packed:
                    data = unpacked(packed, LARGEST)
        except _DAMAGE as error:
            raise UserError(f"{self} is damaged or cannot be read ({first_line(error)}); fetch it again") from None
        return RawFile(self.name, str(self), data)


def find(directory: Path, name: str, *, digest: str = "", size: int = -1) -> RawFile:
    """The file of that name; one of the published ``size`` must have the published ``digest``."""
    refused: UserError | None = None
    for place in places(directory, name):
        file = place.read()
        try:
            if len(file.data) == size:
                verify(file, digest)
        except UserError as error:
            refused = refused or error
            continue
        return file
    raise refused or MissingDataError(f"{directory} has no {name}, as a file, gzipped or in an archive")


def has(directory: Path, name: str) -> bool:
    """Whether `find` would find it; archives are looked into, but not unpacked."""
    return bool(places(directory, name))


def find_all(directory: Path, name: str) -> list[RawFile]:
    """Every file of that name, a leading ``*`` standing for anything; what is there twice, once."""
    return distinct(places(directory, name))


def distinct(found: Iterable[Place]) -> list[RawFile]:
    """The files at these places; of those with the same content, the first."""
    files: dict[str, RawFile] = {}
    for place in found:
        file = place.read()
        files.setdefault(hashlib.sha256(file.data).hexdigest(), file)
    return list(files.values())


def places(directory: Path, name: str) -> list[Place]:
    """Where files of that name lie below ``directory``, plain ones first, then by name: always in one order."""
    files = list(_files(directory))
    plain = [Place(path) for path in files if _matches(path.name, name)]
    inside: list[Place] = []
    broken: UserError | None = None
    for path in files:
        if path.name.endswith(ARCHIVES):
            try:
                members = _members(path)
            except UserError as error:
                broken = broken or error
                continue
            inside += [Place(path, member) for member in members if _matches(member.rpartition("/")[2], name)]
    found = [*sorted(plain, key=lambda place: place.name), *sorted(inside, key=lambda place: place.name)]
    if not found and broken is not None:
        raise broken
    return found


def _matches(found: str, wanted: str) -> bool:
    if found.startswith("."):  # what file managers leave behind
        return False
    found = found.removesuffix(".gz")
    return found.endswith(wanted[1:]) if wanted.startswith("*") else found == wanted


def _files(directory: Path) -> Iterator[Path]:
    """Files not too deep below, those nearer first."""
    try:
        there = directory.is_dir()
    except OSError as error:
        raise UserError(f"{directory} cannot be read ({error.strerror})") from None
    if not there:
        raise MissingDataError(f"{directory} is no directory")
    level = [directory]
    for _ in range(DEPTH):
        below: list[Path] = []
        for folder in level:
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError as error:
                if folder == directory:
                    raise UserError(f"{folder} cannot be read ({error.strerror})") from None
                continue
            for entry in entries:
                with suppress(OSError):  # of links in a circle
                    if entry.is_dir():
                        below.append(Path(entry.path))
                    elif entry.is_file():  # no pipe or device, which may never end
                        yield Path(entry.path)
        level = below


def _members(path: Path) -> list[str]:
    try:
        if path.name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                return archive.namelist()
        with tarfile.open(path) as tar:
            return [member.name for member in islice(tar, MOST_MEMBERS) if member.isfile()]
    except _DAMAGE as error:
        raise UserError(f"{path} is damaged or cannot be read ({first_line(error)}); fetch it again") from None


def _member(path: Path, member: str) -> bytes:
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            return unpacked(file, LARGEST)
    with tarfile.open(path) as tar:
        found = tar.extractfile(member)
        assert found is not None
        return unpacked(found, LARGEST)


def read_idx(file: RawFile, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes in the idx format of MNIST: magic number, sizes, data."""
    data = file.data
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, IDX_BYTES, dimensions]):
        raise UserError(f"{file.where} is no idx file of {dimensions} dimension(s): wrong magic number")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", dimensions, 4))
    expected = header + math.prod(shape)
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
