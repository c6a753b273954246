"""Where samples come from, by name. One file a source; a source makes a `Federation`.

Some are made on the spot or ship with a library. The others are prepared once from the files their publishers give
out, or from the Hugging Face hub, and kept in the data directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from efl.errors import UserError
from efl.federation.federation import Federation
from efl.federation.prepared import (
    Prepared,
    Tensors,
    data_directory,
    expanded,
    is_prepared,
    location,
    read_prepared,
    write_prepared,
)
from efl.federation.published_files import MissingDataError
from efl.federation.sources import cifar100, digits, idx, sent140, shakespeare, synthetic
from efl.federation.sources.request import Request


@dataclass(frozen=True)
class Source:
    """A named data set: its network under ``model.name = "auto"``, its own partition, and how to get at it.

    ``make`` deals it out from nothing, or ``read`` prepares it from a directory of published files, ``fetch`` says
    where to get those, and ``load`` deals out what was prepared.
    """

    what: str
    network: str
    partition: str
    make: Callable[[Request], Federation] | None = None
    read: Callable[[Path], Prepared] | None = None
    load: Callable[[Request, Tensors], Federation] | None = None
    fetch: str = ""
    owned: bool = False


SOURCES: dict[str, Source] = {
    "digits": Source(
        "1,797 handwritten digits, 8 × 8, 10 classes (ships with scikit-learn)", "mlp", "classes:2", make=digits.load
    ),
    "synthetic": Source(
        "synthetic:ALPHA,BETA of FedProx, 60 features, 10 classes, made on the spot",
        "linear",
        "natural",
        make=synthetic.load,
        owned=True,
    ),
    "mnist": Source(
        "70,000 handwritten digits, 28 × 28, 10 classes",
        "cnn",
        "classes:2",
        read=idx.read_mnist,
        load=idx.load,
        fetch="fetch {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz of MNIST (yann.lecun.com/exdb/mnist and mirrors)",
    ),
    "emnist": Source(
        "handwritten digits and letters, 28 × 28, 62 classes (EMNIST ByClass)",
        "cnn",
        "classes:5",
        read=idx.read_emnist,
        load=idx.load,
        fetch="fetch gzip.zip of EMNIST (nist.gov/itl/products-and-services/emnist-dataset)",
    ),
    "cifar100": Source(
        "60,000 colour photographs, 32 × 32, 100 classes",
        "vgg11",
        "classes:10",
        read=cifar100.read,
        load=cifar100.load,
        fetch="fetch cifar-100-binary.tar.gz or cifar-100-python.tar.gz (cs.toronto.edu/~kriz/cifar.html)",
    ),
    "shakespeare": Source(
        "next character in Shakespeare's plays, a role is a client",
        "char_lstm",
        "natural",
        read=shakespeare.read,
        load=shakespeare.load,
        fetch="fetch LEAF (github.com/TalwalkarLab/leaf) and run data/shakespeare/preprocess.sh -s niid --sf 1.0",
        owned=True,
    ),
    "sent140": Source(
        "glad or sad tweets (Sentiment140), clients are groups of users",
        "sentiment_lstm",
        "natural",
        read=sent140.read,
        load=sent140.load,
        fetch="fetch trainingandtestdata.zip of Sentiment140 (help.sentiment140.com/for-students)",
        owned=True,
    ),
}


def find_source(dataset: str) -> Source:
    """The source a data set name such as ``digits`` or ``synthetic:1,1`` belongs to."""
    name, colon, _ = dataset.partition(":")
    if name not in SOURCES:
        raise UserError(f"unknown dataset {dataset!r}; choose one of: {', '.join(SOURCES)}")
    if colon and name != "synthetic":
        raise UserError(f"unknown dataset {dataset!r}; did you mean {name!r}?")
    return SOURCES[name]


def load(
    dataset: str = "digits",
    clients: int = 50,
    partition: str = "auto",
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
) -> Federation:
    """A named data set, dealt out to clients.

    ``data_dir`` is where prepared data sets, or their publishers' files, lie; by default what the environment variable
    EFL_DATA says, or the user's cache.

    >>> load("digits", clients=50, partition="classes:2").name
    'digits'
    """
    source = find_source(dataset)
    chosen = source.partition if partition == "auto" else partition
    if clients < 1:
        raise UserError(f"clients must be at least 1, got {clients}")
    if chosen == "natural" and not source.owned:
        raise UserError(f"partition 'natural' needs data with an owner per sample; {dataset} has none")
    request = Request(dataset, clients, chosen, test_fraction, seed, data_directory(data_dir))
    if source.make is not None:
        return source.make(request)
    assert source.load is not None
    return source.load(request, obtain(dataset, request.directory).tensors)


def prepare(
    dataset: str, files: str | os.PathLike[str] | None = None, data_dir: str | os.PathLike[str] | None = None
) -> Prepared:
    """Read a data set from its publisher's ``files`` (a directory), or from the hub, and keep it for good."""
    source = find_source(dataset)
    if source.read is None:
        raise UserError(f"{dataset} needs no preparing")
    if files is not None:
        prepared = source.read(expanded(files))
    else:
        from efl.federation.hub import download

        prepared = download(dataset, source)
    _refuse_empty(dataset, prepared)
    write_prepared(location(data_directory(data_dir), dataset), prepared)
    return prepared


def obtain(dataset: str, directory: Path) -> Prepared:
    """A data set from the data directory: prepared before, or prepared now from published files lying there."""
    source, path = SOURCES[dataset], location(directory, dataset)
    assert source.read is not None
    if is_prepared(directory, dataset):
        return read_prepared(path)
    own = directory / dataset
    try:
        prepared = source.read(own if own.is_dir() else directory)
    except MissingDataError:
        raise UserError(
            f"{dataset} is not in {directory}; {source.fetch}, then: efl data prepare {dataset} --from DIR"
        ) from None
    _refuse_empty(dataset, prepared)
    with suppress(UserError):  # a directory that may not be written to: read it again next time
        write_prepared(path, prepared)
    return prepared


def _refuse_empty(dataset: str, prepared: Prepared) -> None:
    if any(tensor.numel() == 0 for tensor in prepared.tensors.values()):
        raise UserError(f"the files of {dataset} hold no samples ({prepared.about})")
