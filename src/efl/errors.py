"""The errors a user meets. Each says in one line what to change."""

import errno
import os
import traceback
from pathlib import Path

REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "see to permissions"),
    **dict.fromkeys((errno.ENOMEM, errno.EAGAIN), "use fewer workers"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files: ulimit -n"),
}


def printable(text: str, longest: int) -> str:
    """A text that may quote anything as one line of printable characters, cut if it is too long."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:longest])


class UserError(ValueError):
    r"""A mistake in what the user asked for; the command prints it without a traceback and exits with code 2.

    What is said may quote a file: it is one line, whatever is in there.

    >>> str(UserError("unknown key 'a\nb'"))
    "unknown key 'a b'"
    """

    LONGEST = 2000

    def __str__(self) -> str:
        return printable(super().__str__(), self.LONGEST)


class WireError(Exception):
    r"""Bytes that are not a valid message. The receiver refuses them; nothing of them has been used.

    What is said about them goes into logs and records, and may quote them: it is one short line, whatever they are.

    >>> str(WireError("an answer to\n\x1b[2Janother run"))
    'an answer to [2Janother run'
    """

    LONGEST = 200

    def __str__(self) -> str:
        return " ".join(printable(super().__str__(), 10 * self.LONGEST).split())[: self.LONGEST]


def machine_failure(error: BaseException) -> str | None:
    """What the machine failed at, in one line, if it is that: no room on a disk, no permission, no memory."""
    text = str(error) if isinstance(error, RuntimeError) else ""  # PyTorch's
    if isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text:
        return f"not enough memory ({printable(first_line(error), 200)}); use a smaller model, batch or cohort"
    for code, remedy in REMEDIES.items():
        if os.strerror(code) in text:  # as PyTorch says it of shared memory
            return f"{printable(first_line(error), 200)}; {remedy}"
    if not isinstance(error, OSError):
        return None
    found = REMEDIES.get(error.errno or 0)
    what = error.strerror or first_line(error)
    where = f"{error.filename}: " if error.filename else ""
    return printable(f"{where}{what}{f'; {found}' if found else ''}", UserError.LONGEST)


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
