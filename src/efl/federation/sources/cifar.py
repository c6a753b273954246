"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): colour images of 32 × 32, from either of their published forms.

The binary form has records of the labels, a coarse and a fine one for CIFAR-100, and 3,072 pixels; the Python form has
pickled arrays. Unpickling may run any code, so only what these files need is let through. The published training and
test parts are pooled: every client's own samples are split instead.
"""

import io
import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efl.errors import UserError
from efl.federation.federation import Federation
from efl.federation.prepared import Prepared, Tensors, pooled
from efl.federation.preprocessing import Pixels
from efl.federation.published_files import RawFile, find, has, verify
from efl.federation.sources.registry import SOURCES, DatasetRequest, DatasetSource

PIXELS_A_IMAGE = 3 * 32 * 32
Part = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@dataclass(frozen=True)
class Published:
    """One of the two: its files, the labels of a record, what pickles call the last one, and how to normalise.

    ``sums`` are the published MD5 sums of the pickles, by name and number of images.
    """

    name: str
    classes: int
    files: tuple[str, ...]
    labels: tuple[str, ...]
    key: bytes
    pixels: Pixels
    sums: dict[tuple[str, int], str]

    @property
    def record(self) -> int:
        """The bytes of a record."""
        return len(self.labels) + PIXELS_A_IMAGE


CIFAR10 = Published(
    "cifar-10",
    10,
    ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"),
    ("label",),
    b"labels",
    Pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    {
        ("data_batch_1", 10_000): "md5:c99cafc152244af753f735de768cd75f",
        ("data_batch_2", 10_000): "md5:d4bba439e000b95fd0a9bffe97cbabec",
        ("data_batch_3", 10_000): "md5:54ebc095f3ab1f0389bbae665268c751",
        ("data_batch_4", 10_000): "md5:634d18415352ddfa80567beed471001a",
        ("data_batch_5", 10_000): "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        ("test_batch", 10_000): "md5:40351d587109b95175f43aff81a1287e",
    },
)
CIFAR100 = Published(
    "cifar-100",
    100,
    ("train", "test"),
    ("coarse label", "fine label"),
    b"fine_labels",
    Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    {
        ("train", 50_000): "md5:16019d7e3df5f24257cddd939b257f8d",
        ("test", 10_000): "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
)


def read(which: Published, directory: Path) -> Prepared:
    """The binary files, such as ``train.bin``, or the pickles, such as ``train``."""
    first = which.files[0]
    if has(directory, f"{first}.bin") or not has(directory, first):
        parts = [_records(which, find(directory, f"{part}.bin")) for part in which.files]
    else:
        parts = [_pickled(which, find(directory, part)) for part in which.files]
    return pooled(parts)


def load(which: Published, request: DatasetRequest, tensors: Tensors) -> Federation:
    """Images of shape (3, 32, 32), the fine labels."""
    return Federation.from_tensors(
        tensors["images"], tensors["labels"].long(), classes=which.classes, inputs=which.pixels, **request.dealing
    )


def _records(which: Published, file: RawFile) -> Part:
    size = which.record
    if len(file.data) == 0 or len(file.data) % size:
        raise UserError(
            f"{file.where} should be whole records of {size:,} bytes ({', '.join(which.labels)}, pixels), "
            f"but has {len(file.data):,} bytes"
        )
    records, labels = np.frombuffer(file.data, np.uint8).reshape(-1, size), len(which.labels)
    return _part(which, file, records[:, labels:].reshape(-1, 3, 32, 32), records[:, labels - 1])


def _pickled(which: Published, file: RawFile) -> Part:
    try:
        table = _SafeUnpickler(io.BytesIO(file.data), encoding="bytes").load()
        images = np.asarray(table[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(table[which.key], dtype=np.int64).reshape(-1)
    except UserError:
        raise
    except Exception as error:  # a pickle can be wrong in as many ways as a program
        raise UserError(f"{file.where} is no part of {which.name}-python ({error})") from None
    if digest := which.sums.get((file.name, len(labels))):
        verify(file, digest)
    return _part(which, file, images, labels)


def _part(which: Published, file: RawFile, images: NDArray[np.uint8], labels: NDArray[Any]) -> Part:
    if len(images) != len(labels):
        raise UserError(f"{file.where} has {len(images)} images, but {len(labels)} labels")
    last = which.classes - 1
    if len(labels) and not 0 <= labels.min() <= labels.max() <= last:
        raise UserError(f"{file.where} should have labels 0 … {last}, but has {labels.min()} … {labels.max()}")
    return images, labels.astype(np.uint8)


class _SafeUnpickler(pickle.Unpickler):
    """Arrays of numbers and nothing that could run code."""

    ALLOWED = frozenset({"_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer", "encode"})

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".", maxsplit=1)[0] in ("numpy", "_codecs") and name in self.ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a data set does not need")


for name, which, partition in (("cifar10", CIFAR10, "classes:2"), ("cifar100", CIFAR100, "classes:10")):
    SOURCES.register(
        name,
        DatasetSource(
            f"60,000 colour photographs, 32 × 32, {which.classes} classes",
            "vgg11",
            partition,
            read=partial(read, which),
            load=partial(load, which),
            fetch=f"fetch {which.name}-binary.tar.gz or {which.name}-python.tar.gz (cs.toronto.edu/~kriz/cifar.html)",
        ),
    )
