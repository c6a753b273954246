"""Sentiment140 (Go et al. 2009): is a tweet glad or sad? Most users wrote one tweet only: a client is a group of them.

Prepared are the words of every tweet, as numbers. Which words a network knows is settled when the data are dealt out:
those frequent in the *training* data, and only there.
"""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from efl.errors import UserError
from efl.federation.federation import Federation
from efl.federation.partition import Indices
from efl.federation.prepared import Prepared, Tensors
from efl.federation.preprocessing import as_tokens
from efl.federation.published_files import MissingDataError, RawFile, find_all
from efl.federation.sources.registry import SOURCES, DatasetRequest, DatasetSource
from efl.rng import Purpose, stream

LENGTH = 32  # words kept of a tweet; 140 characters rarely hold more
VOCABULARY = 10_000
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
SEEN_OFTEN = 2  # a word seen once in training teaches nothing that carries over
GLAD = {"0": 0, "4": 1}  # 2, neutral, occurs in the published test file only and is left out

TOKEN = re.compile(r"https?://\S+|www\.\S+|@\w+|[a-z]+(?:'[a-z]+)*|\d+|[!?.]")
LONG_DRAWN = re.compile(r"(.)\1{2,}")

Tweet = tuple[str, int, str]


def read(directory: Path) -> Prepared:
    """Every ``.csv`` file below ``directory``: target, id, date, flag, user, text."""
    files = find_all(directory, "*.csv")
    tweets = [tweet for file in [f for f in files if _looks_right(f)] or files for tweet in _rows(file)]
    if not tweets:
        raise MissingDataError(f"{directory} has no .csv file of Sentiment140, as a file, gzipped or in an archive")
    return from_tweets(tweets)


def from_tweets(tweets: list[Tweet]) -> Prepared:
    """Tweets as (user, 0 or 1, text)."""
    words: dict[str, int] = {}
    users: dict[str, int] = {}
    matrix = np.zeros((len(tweets), LENGTH), dtype=np.int32)
    for row, (_, _, text) in zip(matrix, tweets, strict=True):
        numbers = [words.setdefault(word, len(words) + 1) for word in tokenize(text)[:LENGTH]]
        row[: len(numbers)] = numbers
    tensors = {
        "words": matrix,
        "labels": np.array([label for _, label, _ in tweets], dtype=np.uint8),
        "users": np.array([users.setdefault(user, len(users)) for user, _, _ in tweets], dtype=np.int32),
    }
    about = f"{len(tweets):,} tweets of {len(users):,} users"
    return Prepared({name: torch.from_numpy(array) for name, array in tensors.items()}, about)


def load(request: DatasetRequest, tensors: Tensors) -> Federation:
    """Word numbers (32,), 0 where the tweet is over; 1 stands for words that training data hardly know."""
    users = tensors["users"].numpy()
    people = int(users.max()) + 1
    if request.clients > people:
        raise UserError(f"{request.dataset} has {people:,} users; ask for at most that many clients")
    group = stream(request.seed, Purpose.DATA).permutation(people) % request.clients
    dealt = Federation.from_tensors(
        tensors["words"], tensors["labels"].long(), owners=group[users], classes=2, **request.dealing
    )
    tweets = tensors["words"].numpy()
    known = known_words(tweets[np.concatenate(dealt.train)])
    number = np.full(int(tweets.max()) + 1, UNKNOWN, dtype=np.int16)
    number[0] = PADDING
    number[known] = np.arange(FIRST_WORD, FIRST_WORD + len(known))
    return Federation(
        torch.from_numpy(number[tweets]),
        dealt.y,
        dealt.train,
        dealt.test,
        classes=2,
        name=request.dataset,
        inputs=as_tokens,
        vocabulary=VOCABULARY,
    )


def tokenize(text: str) -> list[str]:
    """Words, marks that carry feeling, and one word each for links, people and numbers.

    >>> tokenize("@bob I'm soooo happy!! see http://x.y/z in 2009")
    ['<user>', "i'm", 'soo', 'happy', '!', '!', 'see', '<link>', 'in', '<number>']
    """
    return [_plain(token) for token in TOKEN.findall(LONG_DRAWN.sub(r"\1\1", text.lower()))]


def _plain(token: str) -> str:
    if token.startswith("@"):
        return "<user>"
    if token.startswith(("http:", "https:", "www.")):
        return "<link>"
    return "<number>" if token[0].isdigit() else token


def known_words(tweets: NDArray[np.int32]) -> Indices:
    """The words to be known, most frequent first; 0 is none."""
    counts = np.bincount(tweets.reshape(-1))
    counts[0] = 0
    order = np.argsort(-counts, kind="stable")[: VOCABULARY - FIRST_WORD]
    return order[counts[order] >= SEEN_OFTEN]


def _looks_right(file: RawFile) -> bool:
    """Whether the first row is one of Sentiment140; a folder may hold tables of other things as well."""
    try:
        return next(_rows(RawFile(file.name, file.where, file.data[:10_000])), None) is not None
    except UserError:
        return False


def _rows(file: RawFile) -> Iterator[Tweet]:
    try:
        file.data.decode("utf-8")
        encoding = "utf-8"
    except UnicodeDecodeError:
        encoding = "latin-1"  # as published
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(file.data), encoding, newline=""))
    try:
        for number, row in enumerate(lines, start=1):
            if len(row) != 6 or row[0] not in ("0", "2", "4"):
                raise UserError(
                    f"{file.where}, row {number}: expected target (0, 2 or 4), id, date, flag, user, text, "
                    f"found {row[:6]}"
                )
            if row[0] in GLAD:
                yield row[4], GLAD[row[0]], row[5]
    except csv.Error as error:
        raise UserError(f"{file.where} is no table of Sentiment140 ({error})") from None


SOURCES.register(
    "sent140",
    DatasetSource(
        "glad or sad tweets (Sentiment140), clients are groups of users",
        "sentiment_lstm",
        "natural",
        read=read,
        load=load,
        fetch="fetch trainingandtestdata.zip of Sentiment140 (help.sentiment140.com/for-students)",
        owned=True,
    ),
)
