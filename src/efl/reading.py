"""The one reader of files that somebody else may have written, or that may be damaged.

Whatever a file holds, reading it ends soon, in little memory, with plain values or with a `DamagedError` in one short
line: only regular files of a limited size are read (no pipe that never ends), nesting is limited before anything is
parsed, numbers are in a range that the rest of the program can compute with, and no key is there twice.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from efl.errors import UserError, first_line

LARGEST = 2**28  # bytes of a file of text
CHUNK = 2**20  # bytes that are unpacked at once
DEPTH = 64  # of lists and tables within each other
LARGEST_INTEGER = 2**64
NUMBER_LENGTH = 400  # characters; the shortest text of any number that a program writes is below that
QUOTED = 60  # characters of a file that a message shows

_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[{\]}]', re.DOTALL)


class Unpacking(Protocol):
    """A file of bytes in an archive."""

    def read(self, size: int, /) -> bytes:
        """So many bytes, or fewer at its end."""
        ...


class DamagedError(ValueError):
    """What is in a file cannot be what was meant; says why in one short line, and in which line of it, if known."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {why}" if line else why)
        self.why, self.line = why, line


@contextmanager
def readable(path: Path | str, remedy: str = "") -> Iterator[None]:
    """Within, a file is read: whatever is wrong with it is a `UserError` that names it and says what to do.

    Args:
        path: The file, for the message.
        remedy: What the user can do about it.
    """
    advice = f"; {remedy}" if remedy else ""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file{advice}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or first_line(error)}){advice}") from None
    except DamagedError as error:
        raise UserError(f"{path}: damaged ({error}){advice}") from None
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise UserError(f"{path}: damaged ({type(error).__name__}: {first_line(error)[:QUOTED]}){advice}") from None


@contextmanager
def opened(path: Path | str, most: int = LARGEST) -> Iterator[IO[bytes]]:
    """A regular file of no more than ``most`` bytes, open to be read.

    Raises:
        DamagedError: It is a directory, a pipe, a device, or too large.
        OSError: It is not there, or may not be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))  # a pipe without a writer waits
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        os.close(file)
        raise DamagedError("not a regular file")
    with open(file, "rb") as regular:
        if found.st_size > most:
            raise DamagedError(f"{found.st_size:,} bytes, more than the {most:,} it may have")
        yield regular


def read_bytes(path: Path | str, most: int = LARGEST) -> bytes:
    """All of a regular file."""
    with opened(path, most) as file:
        return file.read()


def read_text(path: Path | str, most: int = LARGEST) -> str:
    """All of a regular file, as UTF-8; what some programs put at its beginning to say so is left out."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedError(f"not UTF-8 at byte {error.start:,}") from None


def unpacked(file: Unpacking, most: int) -> bytes:
    """All of a file that is unpacked as it is read; `DamagedError` as soon as that is too much."""
    parts: list[bytes] = []
    left = most
    while part := file.read(CHUNK):
        left -= len(part)
        if left < 0:
            raise DamagedError(f"unpacked, more than the {most:,} bytes it may have")
        parts.append(part)
    return b"".join(parts)


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        text: The text; bytes are UTF-8.
        finite: Refuse NaN and Infinity, which Python writes and JSON does not have.

    Returns:
        Plain values; ``1e400`` is no number, nor is one of twenty digits and more.

    Raises:
        DamagedError: It is no JSON, nested too deeply, or has a number out of range or a key twice.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    efl.reading.DamagedError: the key 'a' is there twice
    """
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        _check_nesting(decoded)
        hooks: dict[str, Callable[[str], Any]] = {"parse_int": _integer, "parse_float": _number}
        if finite:
            hooks["parse_constant"] = _no_number
        return json.loads(decoded, object_pairs_hook=_table, **hooks)  # type: ignore[arg-type]
    except json.JSONDecodeError as error:
        raise DamagedError(f"not valid JSON: {error.msg}", error.lineno) from None
    except UnicodeDecodeError as error:
        raise DamagedError(f"not UTF-8 at byte {error.start:,}") from None
    except RecursionError:
        raise DamagedError("nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    r"""The tables of a TOML text; `DamagedError` as for JSON.

    >>> parse_toml("[training]\nrounds = 5")
    {'training': {'rounds': 5}}
    """
    try:
        tables = tomllib.loads(text.replace("\r\n", "\n"), parse_float=_number)
    except tomllib.TOMLDecodeError as error:
        raise DamagedError(f"not valid TOML: {first_line(error)}") from None
    except DamagedError:
        raise
    except (ValueError, OverflowError) as error:  # of dates and of numbers of thousands of digits
        raise DamagedError(f"not valid TOML: {first_line(error)[:QUOTED]}") from None
    except RecursionError:
        raise DamagedError("nested too deeply") from None
    check_values(tables)
    return tables


def parse_msgpack(data: bytes) -> Any:
    """What MessagePack packed, of numbers, texts, bytes, lists and tables; `DamagedError` as for JSON.

    >>> parse_msgpack(bytes([0x92, 1, 2]))
    [1, 2]
    """
    import msgpack

    try:
        value = msgpack.unpackb(data, strict_map_key=False, object_pairs_hook=_table)
    except DamagedError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamagedError(f"not valid MessagePack ({type(error).__name__})") from None
    check_values(value)
    return value


def check_values(value: Any) -> None:
    """Raise `DamagedError` if values are nested too deeply, or a whole number is out of range."""
    level = [value]
    for _ in range(DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list | tuple):
                below += one
            elif isinstance(one, int) and abs(one) > LARGEST_INTEGER:
                raise DamagedError("a number is out of range")
        if not below:
            return
        level = below
    raise DamagedError("nested too deeply")


def whole(value: Any, least: int, most: int, what: str) -> int:
    """A whole number in a range; `DamagedError` names ``what`` if it is another thing."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise DamagedError(f"{what} is {value!r:.{QUOTED}}")
    return value


def _check_nesting(text: str) -> None:
    """Count brackets outside of strings, so that what parses them need not call itself that often."""
    if text.count("[") + text.count("{") <= DEPTH:
        return
    depth = 0
    for found in _STRUCTURE.finditer(text):
        sign = found[0][0]
        depth += (sign in "[{") - (sign in "]}")
        if depth > DEPTH:
            raise DamagedError("nested too deeply")


def _table(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DamagedError(f"the key {twice!r:.{QUOTED}} is there twice")
    return table


def _integer(text: str) -> int:
    if len(text) > len(str(-LARGEST_INTEGER)):
        raise DamagedError("a number is out of range")
    return int(text)


def _number(text: str) -> float:
    number = float(text) if len(text) <= NUMBER_LENGTH else float("inf")
    if number in (float("inf"), float("-inf")) and "inf" not in text:
        raise DamagedError("a number is out of range")
    return number


def _no_number(text: str) -> float:
    raise DamagedError(f"{text} is no number")
