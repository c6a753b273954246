"""Data sets from the Hugging Face hub, through the library ``datasets`` (the extra ``hub``)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from efl.errors import UserError, first_line
from efl.federation.prepared import Prepared, pooled
from efl.federation.sources import femnist, sent140, shakespeare

if TYPE_CHECKING:
    from efl.federation.sources.registry import DatasetSource


def download(name: str, source: DatasetSource) -> Prepared:
    """The data set as the hub has it, prepared as if from its publisher's files."""
    instead = f"or {source.fetch}, then: efl data prepare {name} --from DIR"
    if name not in _READERS:
        raise UserError(f"{name} is not on the hub; {instead.removeprefix('or ')}")
    try:
        import datasets
    except ImportError:
        raise UserError(f"downloading needs the extra 'hub': pip install 'elastic-fl[hub]'; {instead}") from None
    repository, options, read = _READERS[name]
    library = logging.getLogger("huggingface_hub")
    level = library.level
    try:
        library.setLevel(logging.ERROR)  # its retries are not the user's business
        return read(list(datasets.load_dataset(repository, **options).values()))
    except Exception as error:  # of a network, a server and three libraries: one line says all that helps
        reason = first_line(error)
        raise UserError(f"{repository} could not be downloaded ({reason}); try again, {instead}") from None
    finally:
        library.setLevel(level)


def _images(image: str, label: str) -> Callable[[list[Any]], Prepared]:
    def read(splits: list[Any]) -> Prepared:
        pixels = [np.stack([np.asarray(picture) for picture in split[image]]) for split in splits]
        if pixels[0].ndim == 4:
            pixels = [np.ascontiguousarray(images.transpose(0, 3, 1, 2)) for images in pixels]
        return pooled(list(zip(pixels, [np.asarray(split[label]) for split in splits], strict=True)))

    return read


def _writers(splits: list[Any]) -> Prepared:
    """FEMNIST writer by writer."""
    writers: dict[str, tuple[list[Any], list[int]]] = {}
    for split in splits:
        for writer, image, label in zip(split["writer_id"], split["image"], split["character"], strict=True):
            images, labels = writers.setdefault(str(writer), ([], []))
            images.append(np.asarray(image, dtype=np.uint8))
            labels.append(int(label))
    return femnist.from_writers([[(np.stack(x), np.asarray(y))] for x, y in writers.values()])


def _roles(splits: list[Any]) -> Prepared:
    """LEAF's windows, put together again role by role."""
    speeches: list[tuple[tuple[str, str], str]] = []
    for split in splits:
        windows: dict[str, tuple[list[str], list[str]]] = {}
        for role, window, following in zip(split["character_id"], split["x"], split["y"], strict=True):
            texts = windows.setdefault(role, ([], []))
            texts[0].append(window)
            texts[1].append(following)
        for role, (texts_x, texts_y) in windows.items():
            speeches += [(("", role), text) for text in shakespeare.merged(texts_x, texts_y)]
    return shakespeare.from_speeches(speeches)


def _tweets(splits: list[Any]) -> Prepared:
    return sent140.from_tweets(
        [
            (user, sent140.GLAD[str(sentiment)], text)
            for split in splits
            for user, sentiment, text in zip(split["user"], split["sentiment"], split["text"], strict=True)
            if str(sentiment) in sent140.GLAD
        ]
    )


# Repository, options of load_dataset, reader. The last but one was a script once; the hub keeps it as Parquet.
_READERS: dict[str, tuple[str, dict[str, str], Callable[[list[Any]], Prepared]]] = {
    "mnist": ("ylecun/mnist", {}, _images("image", "label")),
    "cifar10": ("uoft-cs/cifar10", {}, _images("img", "label")),
    "femnist": ("flwrlabs/femnist", {}, _writers),
    "cifar100": ("uoft-cs/cifar100", {}, _images("img", "fine_label")),
    "sent140": ("stanfordnlp/sentiment140", {"revision": "refs/convert/parquet"}, _tweets),
    "shakespeare": ("flwrlabs/shakespeare", {}, _roles),
}
