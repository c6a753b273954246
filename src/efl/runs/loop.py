"""A run: round after round, with evaluation, records, checkpoints and an end."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import nn

from efl.client.host import ClientHost
from efl.errors import DivergedError, UserError, reason
from efl.models.files import save_module
from efl.processes import interrupts_deferred, single_threaded
from efl.runs.callbacks import Callback
from efl.runs.checkpoint import Progress, load_checkpoint, save_checkpoint
from efl.runs.directory import MetricsFile, Record, RunDirectory
from efl.runs.evaluation import Evaluator
from efl.runs.model_files import write_network
from efl.runs.privacy import Spending, accountant_of
from efl.runs.records import with_aliases
from efl.runs.result import Result
from efl.runs.settings_compared import settings_of
from efl.runs.setup import LocalSetup, Setup
from efl.runs.summary import reaches, summary_of
from efl.server.records import RoundRecord
from efl.transport.local import LocalTransport
from efl.transport.torchrun import ranks

log = logging.getLogger("efl")


class Observer(Protocol):
    """Watches a run: a tracker, a progress display, a `Callback`."""

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """The run begins, or resumes after the rounds in ``history``."""
        ...

    def round(self, record: Record) -> bool | None:
        """A round is over; True ends the run."""
        ...

    def end(self, summary: Record) -> None:
        """The run is over."""
        ...


@dataclass(eq=False)
class Run:
    """One experiment, run to its end; ``patience`` is for another process on its way out of the directory."""

    setup: Setup
    directory: RunDirectory | None = None
    observers: Sequence[Observer] = ()
    history: list[Record] = field(default_factory=list)
    patience: float = 0.0

    def __post_init__(self) -> None:
        self.coordinator = self.setup.coordinator(self.directory.state if self.directory else None)
        self.evaluator = Evaluator(self.coordinator, self.setup.evaluation, self.setup.objective)
        self.training = self.setup.experiment.training
        self.spending = Spending(accountant_of(self.setup.experiment, self.setup.algorithm), self.training.rounds)
        self.diverged: str | None = None
        self.stopped: str | None = None  # the callback that ended the run
        self._metrics: MetricsFile | None = None
        self._last: Record | None = None  # the last round as it came in; None while another one changes the state

    def execute(self) -> Result:
        """Run the rounds that are left; in a directory with a checkpoint, those after it."""
        with ExitStack() as watching:
            with ExitStack() as stack:
                stack.enter_context(single_threaded())
                stack.enter_context(closing(self.coordinator.transport))
                # Workers that outlive this process by a moment must not keep its directory locked.
                self.coordinator.transport.start()
                if self.directory is not None:
                    stack.enter_context(self.directory.in_use(self.patience))
                self._resume()
                self._start_observers(watching)
                began = time.perf_counter() - (self.history[-1]["seconds"] if self.history else 0.0)
                try:
                    if self._last is not None:
                        self._keep(self._last, began)
                    while not self._finished():
                        with self._whole_round():
                            self._last = None
                            record = self.coordinator.run_round(len(self.history))
                            self._last = as_record(record, self.training.local_steps)
                        if self._last is not None:
                            self._keep(self._last, began)
                except BaseException:
                    self._save_on_the_way_out()
                    raise
                finally:
                    if self._metrics is not None:
                        self._metrics.close()
                summary = self._end(began)
            for observer in self.observers:
                observer.end(summary)
        directory = self.directory.path if self.directory else None
        return Result(summary, self.history, self.module(), directory, self.personalised)

    def _start_observers(self, watching: ExitStack) -> None:
        """Tell observers that the run begins; callbacks are closed with ``watching``."""
        for observer in self.observers:
            if isinstance(observer, Callback):
                observer.run = self
                watching.callback(observer.close)
            observer.start(self.setup, self.history)

    def _resume(self) -> None:
        if self.directory is None:
            return
        where, transport = self.directory.checkpoints, self.coordinator.transport
        progress = load_checkpoint(where, self.coordinator, transport, settings_of(self.setup))
        self.stopped, self._last = progress.stopped, progress.unfinished
        self.history = self.directory.history(progress.rounds - (self._last is not None))
        self._metrics = MetricsFile(self.directory.metrics, self.history)
        if isinstance(self.setup, LocalSetup):
            write_network(self.directory.path, self.setup.federation)

    def _finished(self) -> bool:
        target = self.training.aim
        reached = bool(self.history) and reaches(self.setup.objective, self.history[-1], target)
        ended = self.diverged is not None or self.stopped is not None
        return ended or reached or len(self.history) >= self.spending.last_round

    @contextmanager
    def _whole_round(self) -> Iterator[None]:
        """Within, a round is run: Ctrl-C waits for its end, as the state in its midst could not be kept."""
        try:
            with interrupts_deferred("this round") if ranks() == 1 else nullcontext():
                yield
        except DivergedError as error:
            self.diverged = str(error)

    def _keep(self, result: Record, began: float) -> None:
        """Evaluate and write down what a round came to."""
        record, rounds = dict(result), result["round"] + 1
        record |= self.spending.figures(rounds)
        if record.get("epsilon") is not None and self.coordinator.limits is not None:
            self._checkpoint(rounds, result)  # on a network, nothing is shown to clients that might be drawn again
        if self.setup.evaluation.due(rounds):
            record |= self.evaluator.evaluate(result["round"])
        record = with_aliases(record | {"seconds": round(time.perf_counter() - began, 4)})
        self.history.append(record)
        if self._metrics is not None and self.directory is not None:
            self._metrics.append(record)
            if rounds % self.setup.experiment.track.checkpoint_every == 0 or self._finished():
                self._checkpoint(rounds)
        stopping = [observer for observer in self.observers if observer.round(record) is True]
        if stopping:
            self.stopped = type(stopping[0]).__name__
            self._checkpoint(rounds)

    def _checkpoint(self, rounds: int, unfinished: Record | None = None) -> None:
        if self._metrics is not None and self.directory is not None:
            self._metrics.sync()
            where, transport = self.directory.checkpoints, self.coordinator.transport
            progress = Progress(rounds, self.stopped, unfinished)
            save_checkpoint(where, progress, self.coordinator, transport, settings_of(self.setup))

    def _save_on_the_way_out(self) -> None:
        """Save the last round whatever ended the run, unless that was in the midst of another one.

        Once resumed, the run evaluates that round and shows it to observers again. With ranks nothing is saved: some
        may be gone, or wait for something else.
        """
        if self._last is not None and ranks() == 1:
            try:
                self._checkpoint(self._last["round"] + 1, self._last)
            except Exception as error:  # which must not hide the one that ended the run
                log.warning("the last round could not be saved: %s", reason(error))

    def _end(self, began: float) -> Record:
        """Evaluate what was not yet, and write the model and the summary."""
        history, seconds, merit = self.history, time.perf_counter() - began, self.setup.objective.merit
        wanted = self.training.evaluate_personalised_every != "never"
        if wanted and history and not any(f"personalised_{merit}" in record for record in history):
            # Stopped before the first evaluation of personalised models: do it now.
            history[-1] = with_aliases(history[-1] | self.evaluator.evaluate_personalised(history[-1]["round"]))
        scores = self.evaluator.scores(max(len(history) - 1, 0))
        summary = summary_of(self.setup, self.coordinator, history, scores, seconds, self.diverged)
        summary["stopped"] = self.stopped or self.spending.ended(len(history))
        summary |= self.spending.summary(len(history))
        if self.directory is not None:
            self.save_model(self.directory.model)
            self.directory.write_summary(summary)
        return summary

    def save_model(self, path: Path) -> None:
        """Write the module as it stands into a file."""
        save_module(self.module(), path)

    def personalised(self, client: int) -> nn.Module:
        """The personalised model of a client, as an evaluation after the last round makes it."""
        if not isinstance(client, int | np.integer) or not 0 <= client < self.setup.clients:
            raise UserError(f"there is no client {client!r}; clients are 0 … {self.setup.clients - 1}")
        transport, round_ = self.coordinator.transport, max(len(self.history) - 1, 0)
        if not (isinstance(transport, LocalTransport) and isinstance(transport.host, ClientHost)):
            raise UserError("personalised models are where the clients are, and this process has none of them")
        with single_threaded():
            found = transport.host.personalised(self.evaluator.personalising(round_, np.array([client])))
            return self.coordinator.model.module_at(*found)

    def module(self) -> nn.Module:
        """The model as it stands, for the caller to keep."""
        vector = self.coordinator.algorithm.evaluated_model(self.coordinator.server)
        return self.coordinator.model.module_at(vector, self.coordinator.buffers)


def as_record(result: RoundRecord, local_steps: int) -> Record:
    """A round as a line of metrics.jsonl has it."""
    steps = result.steps
    record: dict[str, Any] = {
        "round": result.round,
        "eta": result.eta,
        "sampled": len(steps),
        "complete": sum(done >= local_steps for done in steps.values()),
        "partial": sum(0 < done < local_steps for done in steps.values()),
        "dropped": sum(done == 0 for done in steps.values()),
        "train_loss": None if math.isnan(result.train_loss) else result.train_loss,
        "bytes_up": sum(result.bytes["up"].values()),
        "bytes_down": sum(result.bytes["down"].values()),
        "bytes": {direction: dict(kinds) for direction, kinds in result.bytes.items()},
        **({} if result.time is None else {"simulated_seconds": result.time}),
        "clients": {str(client): done for client, done in sorted(steps.items())},
        "aggregated": sorted(result.aggregated),
    }
    if result.staleness is not None:
        record["staleness"] = round(result.staleness, 4)
    if result.changes:
        record["membership"] = [asdict(change) for change in result.changes]
    if result.trust:
        record["trust"] = {str(client): round(part, 4) for client, part in sorted(result.trust.items())}
    if result.server_state_reset:
        record["server_state_reset"] = True
    return record | ({"rejected": dict(result.rejected)} if result.rejected else {})
