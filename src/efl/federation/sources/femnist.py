"""FEMNIST (Caldas et al. 2018): handwritten digits and letters, 28 × 28, a client is a writer; from LEAF's JSON files.

LEAF's own split is undone: every client's samples are split into training and test data of the same classes instead.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from efl.errors import UserError
from efl.federation.federation import Federation
from efl.federation.leaf import leaf_files, leaf_users
from efl.federation.prepared import Prepared, Tensors
from efl.federation.preprocessing import Pixels
from efl.federation.published_files import MissingDataError
from efl.federation.sources.registry import SOURCES, DatasetRequest, DatasetSource
from efl.rng import Purpose, stream

CLASSES = 62
PIXELS = Pixels((0.9637,), (0.1597,))  # paper is white: 1
Samples = tuple[NDArray[np.uint8], NDArray[np.int64]]


def read(directory: Path) -> Prepared:
    """Every ``.json`` file of LEAF's below ``directory``; a writer in several of them is one."""
    writers: dict[str, list[Samples]] = {}
    for file in leaf_files(directory):
        for writer, samples in leaf_users(file, _samples):
            writers.setdefault(writer, []).append(samples)
            low, high = samples[1].min(initial=0), samples[1].max(initial=0)
            if low < 0 or high >= CLASSES:
                raise UserError(f"{file.where}: writer {writer} should have labels 0 … 61, but has {low} … {high}")
    if not writers:
        raise MissingDataError(f"{directory} has no .json files of LEAF's FEMNIST")
    return from_writers(list(writers.values()))


def from_writers(writers: Sequence[Sequence[Samples]]) -> Prepared:
    """Every writer's samples, in the order they come."""
    parts = [part for samples in writers for part in samples]
    images, labels = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    counts = [sum(len(y) for _, y in samples) for samples in writers]
    tensors = {
        "images": torch.from_numpy(images),
        "labels": torch.from_numpy(labels.astype(np.uint8)),
        "writers": torch.from_numpy(np.repeat(np.arange(len(writers), dtype=np.int32), counts)),
    }
    return Prepared(tensors, f"{len(writers):,} writers, {len(labels):,} images")


def load(request: DatasetRequest, tensors: Tensors) -> Federation:
    """Images (1, 28, 28); ``natural`` takes as many writers as there are to be clients, at random."""
    owners = tensors["writers"].numpy()
    chosen = np.arange(len(owners))
    if request.partition == "natural":
        names, counts = np.unique(owners, return_counts=True)
        names = names[counts >= 2]
        if request.clients > len(names):
            raise UserError(
                f"{request.dataset} has {len(names):,} writers with two images or more; ask for at most so many clients"
            )
        drawn = stream(request.seed, Purpose.DATA).choice(names, request.clients, replace=False)
        chosen = np.flatnonzero(np.isin(owners, drawn))
    return Federation.from_tensors(
        tensors["images"][torch.from_numpy(chosen)].unsqueeze(1),
        tensors["labels"][torch.from_numpy(chosen)].long(),
        owners=owners[chosen],
        classes=CLASSES,
        inputs=PIXELS,
        **request.dealing,
    )


def _samples(x: Any, y: Any) -> Samples:
    """LEAF's lists of 784 numbers in [0, 1] as bytes, and their labels."""
    if not all(isinstance(label, int) for label in y):
        raise ValueError("labels must be whole numbers")
    labels = np.asarray(y, dtype=np.int64).reshape(-1)
    pixels = np.asarray(x, dtype=np.float64).reshape(len(labels), 28, 28)
    if len(labels) and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError("pixels must lie in [0, 1]")
    return np.rint(255 * pixels).astype(np.uint8), labels


SOURCES.register(
    "femnist",
    DatasetSource(
        "handwritten digits and letters, 28 × 28, 62 classes, a writer is a client",
        "cnn",
        "natural",
        read=read,
        load=load,
        fetch="fetch LEAF (github.com/TalwalkarLab/leaf) and run data/femnist/preprocess.sh -s niid --sf 1.0",
        owned=True,
    ),
)
