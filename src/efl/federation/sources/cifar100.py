"""CIFAR-100 (Krizhevsky 2009): colour images of 32 × 32 in 100 classes, from either of its published forms.

``cifar-100-binary`` has records of a coarse label, a fine label and 3,072 pixels; ``cifar-100-python`` has pickled
arrays. Unpickling may run any code, so only what these files need is let through. The published training and test parts
are pooled: every client's own samples are split instead.
"""

import io
import pickle
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
RECORD = 2 + PIXELS_A_IMAGE
NORMALISED = Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
PICKLE_SUMS = {
    ("train", 50_000): "md5:16019d7e3df5f24257cddd939b257f8d",
    ("test", 10_000): "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
}
Part = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def read(directory: Path) -> Prepared:
    """``train.bin`` and ``test.bin``, or the pickles ``train`` and ``test``."""
    if has(directory, "train.bin") or not has(directory, "train"):
        parts = [_records(find(directory, f"{part}.bin")) for part in ("train", "test")]
    else:
        parts = [_pickled(find(directory, part)) for part in ("train", "test")]
    return pooled(parts)


def load(request: DatasetRequest, tensors: Tensors) -> Federation:
    """Images of shape (3, 32, 32), the 100 fine labels."""
    return Federation.from_tensors(
        tensors["images"], tensors["labels"].long(), classes=100, inputs=NORMALISED, **request.dealing
    )


def _records(file: RawFile) -> Part:
    if len(file.data) == 0 or len(file.data) % RECORD:
        raise UserError(
            f"{file.where} should be whole records of {RECORD:,} bytes (coarse label, fine label, pixels), "
            f"but has {len(file.data):,} bytes"
        )
    records = np.frombuffer(file.data, np.uint8).reshape(-1, RECORD)
    return _part(file, records[:, 2:].reshape(-1, 3, 32, 32), records[:, 1])


def _pickled(file: RawFile) -> Part:
    try:
        table = _SafeUnpickler(io.BytesIO(file.data), encoding="bytes").load()
        images = np.asarray(table[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(table[b"fine_labels"], dtype=np.int64).reshape(-1)
    except UserError:
        raise
    except Exception as error:  # a pickle can be wrong in as many ways as a program
        raise UserError(f"{file.where} is no part of cifar-100-python ({error})") from None
    if digest := PICKLE_SUMS.get((file.name, len(labels))):
        verify(file, digest)
    return _part(file, images, labels)


def _part(file: RawFile, images: NDArray[np.uint8], labels: NDArray[Any]) -> Part:
    if len(images) != len(labels):
        raise UserError(f"{file.where} has {len(images)} images, but {len(labels)} labels")
    if len(labels) and not 0 <= labels.min() <= labels.max() < 100:
        raise UserError(f"{file.where} should have labels 0 … 99, but has {labels.min()} … {labels.max()}")
    return images, labels.astype(np.uint8)


class _SafeUnpickler(pickle.Unpickler):
    """Arrays of numbers and nothing that could run code."""

    ALLOWED = frozenset({"_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer", "encode"})

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".", maxsplit=1)[0] in ("numpy", "_codecs") and name in self.ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a data set does not need")


SOURCES.register(
    "cifar100",
    DatasetSource(
        "60,000 colour photographs, 32 × 32, 100 classes",
        "vgg11",
        "classes:10",
        read=read,
        load=load,
        fetch="fetch cifar-100-binary.tar.gz or cifar-100-python.tar.gz (cs.toronto.edu/~kriz/cifar.html)",
    ),
)
