"""Ways in which a file can be damaged, and what may come of it: an error of one line, or what the whole file gives."""

import os
import random
import signal
from contextlib import contextmanager

from efl import UserError

SECONDS = 20
DEEP = 100_000


class HungError(BaseException):
    """Not an Exception: nothing may catch it."""


def _flip(data, place):
    data = bytearray(data)
    if data:
        data[min(int(place * len(data)), len(data) - 1)] ^= 1 << random.Random(place).randrange(8)
    return bytes(data)


BYTES = {
    "empty": lambda data: b"",
    "cut in half": lambda data: data[: len(data) // 2],
    "cut by a byte": lambda data: data[:-1],
    "its end alone": lambda data: data[len(data) // 2 :],
    "flipped at 0": lambda data: _flip(data, 0.0),
    "flipped at 0.01": lambda data: _flip(data, 0.01),
    "flipped at 0.3": lambda data: _flip(data, 0.3),
    "flipped at 0.7": lambda data: _flip(data, 0.7),
    "flipped at its end": lambda data: _flip(data, 1.0),
    "noise": lambda data: random.Random(1).randbytes(500),
    "zeros": lambda data: bytes(len(data)),
    "twice": lambda data: 2 * data,
    "with rubbish behind": lambda data: data + b"\xff\x00{[",
    "not UTF-8": lambda data: b"\xff\xfe\xfd" + data,
}
NO_FILES = ("directory", "pipe", "circle of links", "link to nothing", "/dev/zero", "eight gigabytes")
EVERY = (*BYTES, *NO_FILES)
# In place of a JSON value.
VALUES = {
    "deep": "[" * DEEP,
    "deep and whole": "[" * DEEP + "]" * DEEP,
    "deep tables": '{"a":' * 5000 + "1" + "}" * 5000,
    "5000 digits": "1" * 5000,
    "1e400": "1e400",
    "2**70": str(2**70),
    "negative": "-1",
    "not a number": "NaN",
    "a word": '"word"',
    "null": "null",
    "a list": "[1]",
    "a table": '{"a": 1}',
    "true": "true",
    "half": "0.5",
}


def damage(path, how):
    """Damage the file; of things that are not bytes, put them in its place."""
    data = path.read_bytes()
    if how in BYTES:
        path.write_bytes(BYTES[how](data))
        return
    path.unlink()
    if how == "directory":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "eight gigabytes":
        path.write_bytes(data)
        os.truncate(path, 2**33)
    else:
        path.symlink_to({"circle of links": path, "link to nothing": path.parent / "nothing"}.get(how, "/dev/zero"))


@contextmanager
def soon():
    """Within, something must end."""

    def hung(number, frame):
        raise HungError

    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(read):
    """What reading gives, or None if it is refused: that is one line, and any other error fails the test."""
    try:
        with soon():
            return read()
    except UserError as error:
        line = str(error)
        assert line.strip()
        assert line.isprintable()
        assert len(line) <= UserError.LONGEST
        return None
