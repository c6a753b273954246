"""MNIST (LeCun et al. 1998) and EMNIST ByClass (Cohen et al. 2017): grey images of 28 × 28 in idx files.

The published training and test parts are pooled: every client's own samples are split into training and test data of
the same classes instead.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from efl.errors import UserError
from efl.federation.federation import Federation
from efl.federation.prepared import Prepared, Tensors, pooled
from efl.federation.preprocessing import Pixels
from efl.federation.published_files import RawFile, find, read_idx
from efl.federation.sources.registry import SOURCES, DatasetRequest, DatasetSource

# The files of MNIST unpacked: bytes, SHA-256.
PUBLISHED = {
    "train-images-idx3-ubyte": (47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    "train-labels-idx1-ubyte": (60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    "t10k-images-idx3-ubyte": (7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "t10k-labels-idx1-ubyte": (10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
}
PIXELS = {"mnist": Pixels((0.1307,), (0.3081,)), "emnist": Pixels((0.1736,), (0.3317,))}
CLASSES = {"mnist": 10, "emnist": 62}


def read_mnist(directory: Path) -> Prepared:
    """The four files of MNIST; torchvision's folder will do."""
    parts = []
    for part in ("train", "t10k"):
        images, labels = (
            find(directory, name, size=PUBLISHED[name][0], digest=f"sha256:{PUBLISHED[name][1]}")
            for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
        )
        parts.append(_part(images, labels, 10))
    return pooled(parts)


def read_emnist(directory: Path) -> Prepared:
    """The ByClass files of EMNIST, turned upright: NIST has rows and columns swapped."""
    parts = []
    for part in ("train", "test"):
        images = find(directory, f"emnist-byclass-{part}-images-idx3-ubyte")
        labels = find(directory, f"emnist-byclass-{part}-labels-idx1-ubyte")
        pixels, classes = _part(images, labels, 62)
        parts.append((np.ascontiguousarray(pixels.transpose(0, 2, 1)), classes))
    return pooled(parts)


def load(request: DatasetRequest, tensors: Tensors) -> Federation:
    """Images of shape (1, 28, 28)."""
    name = request.dataset
    return Federation.from_tensors(
        tensors["images"].unsqueeze(1),
        tensors["labels"].long(),
        classes=CLASSES[name],
        inputs=PIXELS[name],
        **request.dealing,
    )


Part = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def _part(images: RawFile, labels: RawFile, classes: int) -> Part:
    pixels, numbers = read_idx(images, 3), read_idx(labels, 1)
    if pixels.shape[1:] != (28, 28):
        raise UserError(f"{images.where} should have images of 28 × 28, but has {pixels.shape[1]} × {pixels.shape[2]}")
    if len(pixels) != len(numbers):
        raise UserError(f"{images.where} has {len(pixels)} images, but {labels.where} has {len(numbers)} labels")
    if len(numbers) and numbers.max() >= classes:
        raise UserError(f"{labels.where} should have labels 0 … {classes - 1}, but has {numbers.max()}")
    return pixels, numbers


SOURCES.register(
    "mnist",
    DatasetSource(
        "70,000 handwritten digits, 28 × 28, 10 classes",
        "cnn",
        "classes:2",
        read=read_mnist,
        load=load,
        fetch="fetch {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz of MNIST (yann.lecun.com/exdb/mnist and mirrors)",
    ),
)
SOURCES.register(
    "emnist",
    DatasetSource(
        "handwritten digits and letters, 28 × 28, 62 classes (EMNIST ByClass)",
        "cnn",
        "classes:5",
        read=read_emnist,
        load=load,
        fetch="fetch gzip.zip of EMNIST (nist.gov/itl/products-and-services/emnist-dataset)",
    ),
)
