"""Data sets prepared once: tensors in one file, which loads in a blink or is refused.

A prepared data set is ``NAME.safetensors`` in the data directory: what was read from the publisher's files, and a
checksum of every tensor. It appears there whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from efl.errors import UserError
from efl.reading import DamagedError
from efl.storage import cache_path, checksum, description, read_tensors, whole_file

FORMAT, TENSORS_ALONE = "2", "1"  # the format before has a checksum of every tensor, and none of all else
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Prepared:
    """The tensors of a data set, and a line on what was found in the files they come from."""

    tensors: Tensors
    about: str


def pooled(parts: Sequence[tuple[NDArray[np.uint8], NDArray[Any]]]) -> Prepared:
    """Images and labels of the published parts, together."""
    images = np.concatenate([images for images, _ in parts])
    labels = np.concatenate([labels for _, labels in parts]).astype(np.uint8)
    about = " + ".join(f"{len(labels):,}" for _, labels in parts) + " images"
    return Prepared({"images": torch.from_numpy(images), "labels": torch.from_numpy(labels)}, about)


def data_directory(chosen: str | os.PathLike[str] | None = None) -> Path:
    """The one chosen, or that of the environment variable EFL_DATA, or the user's cache."""
    if chosen or (chosen := os.environ.get("EFL_DATA")):
        return expanded(chosen)
    return expanded(cache_path())


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with ``~`` spelt out."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: {error}") from None


def is_prepared(directory: Path, name: str) -> bool:
    """Whether the data set can be loaded without its publisher's files."""
    try:
        return location(directory, name).exists()
    except OSError as error:
        raise UserError(f"{directory} cannot be read ({error.strerror})") from None


def location(directory: Path, name: str) -> Path:
    """Where the prepared data set is, if it is."""
    return directory / f"{name}.safetensors"


def write_prepared(path: Path, prepared: Prepared) -> None:
    """Keep a data set; a reader sees the old file or the new one, never half of it."""
    tensors = {name: tensor.contiguous() for name, tensor in prepared.tensors.items()}
    sums = {f"crc.{name}": str(checksum(tensor.numpy())) for name, tensor in tensors.items()}
    notes = {"format": FORMAT, "dataset": path.stem, "about": prepared.about, **sums}
    notes["sha256"] = _digest(notes, tensors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary:
            save_file(tensors, temporary, notes)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be written ({error}); choose another data directory") from None


def read_prepared(path: Path) -> Prepared:
    """The data set in ``path``, checked."""
    name = path.stem
    again = f"delete it and prepare it again: efl data prepare {name} --from DIR"
    try:
        notes, tensors = read_tensors(path)
    except PermissionError:
        raise UserError(f"{path} may not be read by you; ask its owner, or choose another data directory") from None
    except (OSError, DamagedError) as error:
        raise UserError(f"{path} is damaged ({error}); {again}") from None
    digest, format_ = notes.pop("sha256", None), notes.get("format")
    if format_ not in (FORMAT, TENSORS_ALONE):
        raise UserError(f"{path} was prepared by another version of efl; {again}")
    if digest != (_digest(notes, tensors) if format_ == FORMAT else None):
        raise UserError(f"{path} is damaged (the checksum of its notes does not match); {again}")
    if notes.get("dataset", name) != name:
        raise UserError(f"{path} holds {notes['dataset']}; name it {notes['dataset']}.safetensors, or {again}")
    for key, tensor in tensors.items():
        if str(checksum(tensor.numpy())) != notes.get(f"crc.{key}"):
            raise UserError(f"{path} is damaged (the checksum of {key} does not match); {again}")
    return Prepared(tensors, notes.get("about", ""))


def _digest(notes: Mapping[str, str], tensors: Tensors) -> str:
    """Of everything but the tensors' bytes, whose checksums are among the notes."""
    return hashlib.sha256(description(notes, tensors)).hexdigest()
