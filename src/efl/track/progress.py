"""Progress: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from efl.runs.directory import Record
from efl.runs.loop import Observer
from efl.runs.setup import Setup
from efl.track.text import bytes_text, change_lines, duration, number, percent


class Display(Observer, Protocol):
    """An observer that holds the terminal until it is closed."""

    def close(self) -> None:
        """Give the terminal back, also after an error; closing twice does no harm."""
        ...


def progress_displays(console: Console, *, quiet: bool = False) -> list[Display]:
    """What suits the console: a bar, lines, or nothing."""
    if quiet:
        return []
    return [LiveProgress(console)] if console.is_terminal else [PlainProgress(console)]


class _Totals:
    """What has happened so far, as the displays tell it."""

    def __init__(self, history: Sequence[Record]) -> None:
        self.up = self.down = 0
        self.kinds: Counter[str] = Counter()
        self.accuracy: float | None = None
        self.loss: float | None = None
        self.last: Record = {}
        for record in history:
            self.add(record)

    def add(self, record: Record) -> None:
        self.up += record["bytes_up"]
        self.down += record["bytes_down"]
        for kinds in record.get("bytes", {}).values():
            self.kinds.update(kinds)
        self.accuracy = record.get("accuracy", self.accuracy)
        self.loss = record["train_loss"] if record["train_loss"] is not None else self.loss
        self.last = record

    def state(self) -> str:
        last = self.last
        clients = f"{last.get('complete', 0)}/{last.get('incomplete', 0)}/{last.get('inactive', 0)}"
        return f"accuracy {percent(self.accuracy):>7}  loss {number(self.loss)}  complete/incomplete/inactive {clients}"

    def bytes(self) -> str:
        return f"↑ {bytes_text(self.up)}  ↓ {bytes_text(self.down)}"

    def time(self) -> str:
        """The simulated time, where rounds take some."""
        return f"  simulated {duration(self.last['simulated_seconds'])}" if "simulated_seconds" in self.last else ""

    def shares(self) -> str:
        """What the bytes were for, the most first."""
        total = max(1, self.kinds.total())
        return "bytes: " + ", ".join(f"{kind} {count / total:.0%}" for kind, count in self.kinds.most_common(4))


class LiveProgress:
    """A bar that is redrawn every round, and below it how the run stands; fits 80 columns."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[bytes]}"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self.live = Live(console=console, refresh_per_second=8)

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """Show the bar, at the round the run stands at."""
        name, rounds = setup.experiment.algorithm_name, setup.experiment.training.rounds
        self.totals = _Totals(history)
        self.task = self.bar.add_task(name, total=rounds, completed=len(history), bytes=self.totals.bytes())
        self.live.start()
        self._show()

    def _show(self) -> None:
        self.live.update(
            Group(self.bar, Text(self.totals.state()), Text(self.totals.shares() + self.totals.time(), style="dim"))
        )

    def round(self, record: Record) -> None:
        """One further."""
        self.totals.add(record)
        for line in change_lines(record):
            self.live.console.print(line, highlight=False, soft_wrap=True)
        self.bar.update(self.task, advance=1, bytes=self.totals.bytes())
        self._show()

    def end(self, summary: Record) -> None:
        """Leave the last state standing."""
        self.close()

    def close(self) -> None:
        """Give the terminal back, also after an error."""
        self.live.stop()


class PlainProgress:
    """A line for every evaluation."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """Say what begins, or goes on."""
        experiment = setup.experiment
        self.totals, self.rounds = _Totals(history), experiment.training.rounds
        what = f"{experiment.algorithm_name} on {setup.federation.name}, {len(setup.federation)} clients"
        went_on = f", going on after round {len(history)}" if history else ""
        compiled = ", compiled" if setup.backend.name == "native" else ""
        self.console.print(f"{what}, {setup.model.n:,} parameters{compiled}{went_on}", highlight=False)

    def round(self, record: Record) -> None:
        """Tell the evaluated rounds."""
        self.totals.add(record)
        for line in change_lines(record):
            self.console.print(line, highlight=False, soft_wrap=True)
        if "accuracy" in record:
            line = f"round {record['round'] + 1:>4}/{self.rounds}  {self.totals.state()}  {self.totals.bytes()}"
            self.console.print(line + self.totals.time(), highlight=False, soft_wrap=True)

    def end(self, summary: Record) -> None:
        """The table that follows says the rest."""

    def close(self) -> None:
        """Nothing to give back."""
