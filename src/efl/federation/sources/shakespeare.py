"""Shakespeare's plays: a client is a speaking role, a sample is 80 characters, the task is to tell the next one.

Read from JSON lines of ``{"play", "role", "speeches"}``, or from the JSON that LEAF (Caldas et al. 2018) makes. LEAF's
samples are windows that overlap in all but one character; test windows would repeat training windows, so the text is
put together again and cut into windows side by side. The network answers at every position of a window, as in McMahan
et al. 2017.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.errors import UserError
from efl.federation.federation import Federation
from efl.federation.leaf import leaf_files, leaf_users
from efl.federation.prepared import Prepared, Tensors
from efl.federation.preprocessing import as_tokens
from efl.federation.published_files import MissingDataError, RawFile, find_all
from efl.federation.sources.registry import SOURCES, DatasetRequest, DatasetSource
from efl.reading import QUOTED, parse_json
from efl.rng import Purpose, stream

WINDOW = 80
NEWLINE, UNKNOWN = 95, 96  # after the 95 printable characters of ASCII
CHARACTERS = 97

Role = tuple[str, str]


def read(directory: Path) -> Prepared:
    """Every ``.jsonl`` file below ``directory``, or else every ``.json`` file of LEAF."""
    speeches = [entry for file in find_all(directory, "*.jsonl") for entry in _json_lines(file)]
    if not speeches:
        speeches = [entry for file in leaf_files(directory) for entry in _leaf(file)]
    if not speeches:
        raise MissingDataError(f"{directory} has no .jsonl file of roles, nor LEAF's .json files")
    return from_speeches(speeches)


def from_speeches(speeches: list[tuple[Role, str]]) -> Prepared:
    """Roles with all they say, in the order they come."""
    roles: dict[Role, list[str]] = {}
    for role, text in speeches:
        roles.setdefault(role, []).append(text)
    codes = [encode("\n".join(texts)) for texts in roles.values()]
    starts = np.cumsum([0, *map(len, codes)])
    plays = {play for play, _ in roles if play}
    about = f"{len(roles):,} roles, {starts[-1]:,} characters"
    if plays:
        about = f"{len(plays)} plays, {about}"
    return Prepared(
        {"characters": torch.from_numpy(np.concatenate(codes)), "starts": torch.from_numpy(starts)},
        about,
    )


def load(request: DatasetRequest, tensors: Tensors) -> Federation:
    """Windows (80,) and at every position the next character.

    ``natural`` takes as many roles as there are to be clients, at random, of those who speak two windows or more.
    """
    starts = tensors["starts"].numpy()
    counts = np.maximum(np.diff(starts) - 1, 0) // WINDOW
    roles = np.flatnonzero(counts)
    if request.partition == "natural":
        speaking = np.flatnonzero(counts >= 2)
        if request.clients > len(speaking):
            raise UserError(
                f"{request.dataset} has {len(speaking):,} roles with two windows of {WINDOW} characters or more; "
                "ask for at most that many clients"
            )
        rng = stream(request.seed, Purpose.DATA)
        roles = np.sort(rng.choice(speaking, request.clients, replace=False))
    windows = _windows(tensors["characters"], starts[roles], counts[roles])
    return Federation.from_tensors(
        windows[:, :-1],
        windows[:, 1:],
        owners=np.repeat(roles, counts[roles]),
        classes=CHARACTERS,
        vocabulary=CHARACTERS,
        inputs=as_tokens,
        **request.dealing,
    )


def encode(text: str) -> NDArray[np.uint8]:
    r"""A code for every character.

    >>> encode(" A~é\n").tolist()
    [0, 33, 94, 96, 95]
    """
    points = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32).astype(np.int64)
    printable = (points >= 32) & (points < 127)
    return np.where(printable, points - 32, np.where(points == 10, NEWLINE, UNKNOWN)).astype(np.uint8)


def _windows(characters: Tensor, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> Tensor:
    """(windows, 81): each begins with the character the one before ends with."""
    first = np.concatenate([start + WINDOW * np.arange(count) for start, count in zip(starts, counts, strict=True)])
    return characters[torch.from_numpy(first[:, None] + np.arange(WINDOW + 1))]


def _json_lines(file: RawFile) -> Iterator[tuple[Role, str]]:
    for number, line in enumerate(file.data.splitlines(), start=1):
        try:
            entry = parse_json(line)
            role = (str(entry["play"]), str(entry["role"]))
            if not isinstance(entry["speeches"], list):
                raise TypeError("speeches must be a list")
            text = "\n".join(entry["speeches"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f'{file.where}, line {number}: expected {{"play": …, "role": …, "speeches": […]}} ({error!r:.{QUOTED}})'
            ) from None
        yield role, text


def _leaf(file: RawFile) -> Iterator[tuple[Role, str]]:
    for user, texts in leaf_users(file, lambda x, y: list(merged(x, y))):
        for text in texts:
            yield ("", user), text


def merged(windows: list[str], following: list[str]) -> Iterator[str]:
    """The text that overlapping windows were cut from, in as many pieces as it takes.

    >>> list(merged(["abc", "bcd", "xyz"], ["d", "e", "!"]))
    ['abcde', 'xyz!']
    """
    piece = ""
    for window, character in zip(windows, following, strict=True):
        if piece and piece.endswith(window):
            piece += character
            continue
        if piece:
            yield piece
        piece = window + character
    if piece:
        yield piece


SOURCES.register(
    "shakespeare",
    DatasetSource(
        "next character in Shakespeare's plays, a role is a client",
        "char_lstm",
        "natural",
        read=read,
        load=load,
        fetch="fetch LEAF (github.com/TalwalkarLab/leaf) and run data/shakespeare/preprocess.sh -s niid --sf 1.0",
        owned=True,
    ),
)
