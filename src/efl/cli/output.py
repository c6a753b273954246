"""Standard output, which may fail: a full disk, a pipe that nobody reads from. What a command does goes on without."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any


class Output:
    """Writes to standard output until that fails; then nothing more is printed, and `failure` says why."""

    def __init__(self) -> None:
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Print, if possible."""
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        """See that it is printed, if possible."""
        self._try("flush")

    def close_if_broken(self) -> None:
        """Let go of standard output if it cannot be written: at its end, Python would complain about it once more."""
        with suppress(OSError, ValueError):
            try:
                _stdout().flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), _stdout().fileno())

    def _try(self, method: str, *arguments: str) -> None:
        if self.failure is not None:
            return
        try:
            getattr(_stdout(), method)(*arguments)
        except OSError as error:
            self.failure = error
            self.close_if_broken()

    def __getattr__(self, name: str) -> Any:
        return getattr(_stdout(), name)


def _stdout() -> Any:
    """The stream itself, also while a display of rich stands in its place."""
    return getattr(sys.stdout, "rich_proxied_file", sys.stdout)


output = Output()
