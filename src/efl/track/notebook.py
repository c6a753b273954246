"""Progress inside a notebook: a bar below the cell, redrawn in place."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from html import escape
from typing import Any

from efl.runs.callbacks import Callback
from efl.runs.directory import Record
from efl.runs.setup import Setup
from efl.track.progress import Totals
from efl.track.text import change_lines

LEAST_SECONDS = 0.1  # between two pictures of the bar


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def _ipython_display() -> Any:
    return importlib.import_module("IPython.display")


class NotebookProgress(Callback):
    """A bar, how the run stands, and who came and went last; needs nothing but IPython."""

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """Show the bar, at the round the run stands at."""
        self.name, self.rounds = setup.experiment.algorithm_name, setup.experiment.training.rounds
        self.totals, self.done, self.news, self._drawn = Totals(setup, history), len(history), "", 0.0
        self._handle: Any = _ipython_display().display(self._picture(), display_id=True)

    def round(self, record: Record) -> None:
        """One further."""
        self.totals.add(record)
        self.done = record["round"] + 1
        self.news = (change_lines(record) or [self.news])[-1]
        if time.monotonic() >= self._drawn + LEAST_SECONDS:
            self._draw()

    def end(self, summary: Record) -> None:
        """Leave the last state standing."""
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._handle.update(self._picture())

    def _picture(self) -> Any:
        bar = f"<progress value='{self.done}' max='{self.rounds}'></progress>"
        head = f"{escape(self.name)} {bar} {self.done}/{self.rounds}"
        lines = [f"{self.totals.state()}  {self.totals.bytes()}{self.totals.time()}", self.news]
        text = "<br>".join(escape(line) for line in lines if line)
        return _ipython_display().HTML(f"<div>{head}<br><span style='white-space: pre'>{text}</span></div>")
