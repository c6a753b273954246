"""Where samples come from, by name. One file a source; a source makes a `Federation`.

Some are made on the spot or ship with a library. The others are prepared once from the files their publishers give
out, or from the Hugging Face hub, and kept in the data directory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from efl.errors import UserError
from efl.federation.federation import Federation
from efl.federation.prepared import (
    Prepared,
    data_directory,
    expanded,
    is_prepared,
    location,
    read_prepared,
    write_prepared,
)
from efl.federation.published_files import MissingDataError
from efl.federation.sources.registry import SOURCES, DatasetRequest, DatasetSource
from efl.reading import readable


def find_source(dataset: str) -> DatasetSource:
    """The source a data set name such as ``digits`` or ``synthetic:1,1`` belongs to."""
    source, parameters = SOURCES.split(dataset)
    if parameters and not source.parameters:
        raise UserError(f"unknown dataset {dataset!r}; did you mean {dataset.partition(':')[0]!r}?")
    return source


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

    Args:
        dataset: A name, such as ``digits`` or ``synthetic:1,1``; `efl data list` shows them all. Or an import path,
            ``package.module:function``.
        clients: How many.
        partition: ``iid``, ``classes:M``, ``groups:M``, ``dirichlet:A`` or ``natural``; ``auto`` suits the data set.
        test_fraction: The part of every client's samples that is held out to test on.
        seed: Of the partition, and of data that are made on the spot.
        data_dir: Where prepared data sets, or their publishers' files, lie; by default what the environment variable
            EFL_DATA says, or the user's cache.

    Returns:
        The federation.

    Raises:
        UserError: If there is no such data set here, or it cannot be dealt out like that.

    >>> load("digits", clients=50, partition="classes:2").name
    'digits'
    """
    source = find_source(dataset)
    chosen = source.partition if partition == "auto" else partition
    if clients < 1:
        raise UserError(f"clients must be at least 1, got {clients}")
    if chosen == "natural" and not source.owned:
        raise UserError(f"partition 'natural' needs data with an owner per sample; {dataset} has none")
    request = DatasetRequest(dataset, clients, chosen, test_fraction, seed, data_directory(data_dir))
    if source.make is not None:
        return source.make(request)
    assert source.load is not None
    prepared = obtain(dataset, request.directory)
    with readable(location(request.directory, dataset), f"prepare it again: efl data prepare {dataset} --from DIR"):
        return source.load(request, prepared.tensors)


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
    source, path = SOURCES.get(dataset), location(directory, dataset)
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
