"""Progress: a live bar on a terminal, plain lines otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from efl.runs.callbacks import Callback
from efl.runs.comparison import Groups, Job, run_jobs
from efl.runs.directory import Record
from efl.runs.loop import Observer
from efl.runs.privacy import described
from efl.runs.records import BUDGET, with_aliases
from efl.runs.setup import Setup
from efl.track.text import bytes_text, change_lines, duration, merit, number, outcome


@contextmanager
def run_progress(console: Console, *, quiet: bool = False) -> Iterator[list[Observer]]:
    """Show a run while it lasts: a bar on a terminal, lines otherwise, nothing if ``quiet``.

    Args:
        console: Where to.
        quiet: Not at all.

    Yields:
        Observers to pass to the run. The terminal is given back however the block ends.
    """
    if quiet:
        yield []
    elif console.is_terminal:
        bar = LiveProgress(console)
        try:
            yield [bar]
        finally:
            bar.close()
    else:
        yield [PlainProgress(partial(console.print, highlight=False, markup=False, soft_wrap=True))]


def progress_display() -> Observer:
    """What shows a run where this process writes to: a bar in a notebook or on a terminal, lines otherwise."""
    from efl.track.notebook import NotebookProgress, in_notebook

    if in_notebook():
        return NotebookProgress()
    console = Console(highlight=False)
    if console.is_terminal:
        return LiveProgress(console)
    return PlainProgress(partial(console.print, highlight=False, markup=False, soft_wrap=True))


@contextmanager
def batch_progress(console: Console, total: int, *, quiet: bool = False) -> Iterator[Callable[[Job, Record], None]]:
    """Show how many of ``total`` runs are done; yields what to call with each as it ends."""
    if quiet:
        yield lambda job, summary: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("runs", total=total)
            yield lambda job, summary: progress.update(
                task, advance=1, description=f"{job.label}, seed {summary['seed']}"
            )
    else:
        yield lambda job, summary: console.print(
            f"{job.label}, seed {summary['seed']}: best {_best(summary)}", soft_wrap=True, markup=False
        )


def run_with_progress(
    jobs: Sequence[Job],
    workers: int | None = None,
    on_done: Callable[[Job, Record], None] | None = None,
    *,
    console: Console | None = None,
    quiet: bool = False,
) -> Groups:
    """`efl.runs.comparison.run_jobs` with a display; ``on_done`` is called with each run as it ends."""
    with batch_progress(console or Console(highlight=False), len(jobs), quiet=quiet) as show:

        def done(job: Job, summary: Record) -> None:
            show(job, summary)
            if on_done is not None:
                on_done(job, summary)

        return run_jobs(jobs, workers, done)


def _best(summary: Record) -> str:
    return merit(summary["bmta_global"], summary.get("metric_is_share", True))


class Totals:
    """What has happened so far, as the displays tell it."""

    def __init__(self, setup: Setup, history: Sequence[Record]) -> None:
        self.name, self.share = setup.objective.merit, setup.objective.share
        self.up = self.down = 0
        self.kinds: Counter[str] = Counter()
        self.merit: float | None = None
        self.loss: float | None = None
        self.last: Record = {}
        for record in history:
            self.add(record)

    def add(self, record: Record) -> None:
        """A further round."""
        record = with_aliases(record)
        self.up += record["bytes_up"]
        self.down += record["bytes_down"]
        for kinds in record.get("bytes", {}).values():
            self.kinds.update(kinds)
        self.merit = record.get(self.name, self.merit)
        self.loss = record["train_loss"] if record["train_loss"] is not None else self.loss
        self.last = record

    def state(self) -> str:
        """How good the model is, and how the last cohort did."""
        last = self.last
        clients = f"{last.get('complete', 0)}/{last.get('partial', 0)}/{last.get('dropped', 0)}"
        found = f"{self.name} {merit(self.merit, self.share):>7}  loss {number(self.loss)}"
        spent = f"  ε {last['epsilon']:.2f}" if "epsilon" in last else ""
        return f"{found}  complete/partial/dropped {clients}{spent}"

    def bytes(self) -> str:
        """What was sent so far."""
        return f"↑ {bytes_text(self.up)}  ↓ {bytes_text(self.down)}"

    def time(self) -> str:
        """The simulated time, where rounds take some."""
        return f"  simulated {duration(self.last['simulated_seconds'])}" if "simulated_seconds" in self.last else ""

    def shares(self) -> str:
        """What the bytes were for, the most first."""
        total = max(1, self.kinds.total())
        return "bytes: " + ", ".join(f"{kind} {count / total:.0%}" for kind, count in self.kinds.most_common(4))


class LiveProgress(Callback):
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
        self.totals = Totals(setup, history)
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
    """Lines of text: what begins, who comes and goes, replies that were rejected, and evaluated rounds.

    Args:
        say: Called with each line.
        every_round: A line for every round, not only for those in which models are evaluated.
    """

    def __init__(self, say: Callable[[str], object], *, every_round: bool = False) -> None:
        self.say, self.every_round = say, every_round

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """Say what begins, or goes on."""
        experiment = setup.experiment
        self.totals, self.rounds = Totals(setup, history), experiment.training.rounds
        what = f"{experiment.algorithm_name} on {setup.dataset}, {setup.clients} clients"
        resumed = f", resumed after round {len(history)}" if history else ""
        compiled = ", compiled" if setup.backend_name == "native" else ""
        self.say(f"{what}, {setup.model.n:,} parameters{compiled}{resumed}")
        if (private := described(setup.experiment, setup.algorithm)) is not None:
            self.say(private)

    def round(self, record: Record) -> None:
        """What happened in a round."""
        record = with_aliases(record)
        self.totals.add(record)
        for line in change_lines(record):
            self.say(line)
        for client, why in record.get("rejected", {}).items():
            self.say(f"rejected: client {client}: {why}")
        if record.get("server_state_reset"):
            self.say("all replies rejected for several rounds: server state reset, model weights kept")
        if self.every_round or self.totals.name in record:
            progress = f"round {record['round'] + 1}/{self.rounds}"
            self.say(f"{progress}  {self.totals.state()}  {self.totals.bytes()}{self.totals.time()}")

    def end(self, summary: Record) -> None:
        """If the privacy budget ended it; the table that follows says the rest."""
        if summary.get("stopped") == BUDGET:
            self.say(f"ended: {outcome(summary)}")
