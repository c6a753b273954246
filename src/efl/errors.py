"""The errors a user meets. Each says in one line what to change."""

import traceback
from pathlib import Path


class UserError(ValueError):
    """A mistake in what the user asked for; the command prints it without a traceback and exits with code 2."""


class WireError(Exception):
    r"""Bytes that are not a valid message. The receiver refuses them; nothing of them has been used.

    What is said about them goes into logs and records, and may quote them: it is one short line, whatever they are.

    >>> str(WireError("an answer to\n\x1b[2Janother run"))
    'an answer to [2Janother run'
    """

    LONGEST = 200

    def __str__(self) -> str:
        text = super().__str__()[: 10 * self.LONGEST]
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[: self.LONGEST]


class DivergedError(Exception):
    """Training left the finite numbers. Reported as such, never averaged away."""


def first_line(error: BaseException) -> str:
    """What an error of somebody else's says, in one line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def reason(error: BaseException) -> str:
    """The same with what kind of error it is, unless it is one of ours, which speaks for itself."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"


def line_in(error: BaseException, file: Path) -> str:
    """Which line of the file is at fault, if one is, to stand behind its name."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f", line {lines[-1]}" if lines else ""
