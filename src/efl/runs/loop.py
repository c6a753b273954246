"""A run: round after round, with evaluation, records, checkpoints and an end."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from efl.errors import DivergedError
from efl.models.files import save_module
from efl.processes import single_threaded
from efl.runs.checkpoint import load_checkpoint, save_checkpoint
from efl.runs.directory import MetricsFile, Record, RunDirectory
from efl.runs.evaluation import Evaluator
from efl.runs.records import with_aliases
from efl.runs.setup import Setup
from efl.runs.summary import reaches, summary_of
from efl.server.records import RoundRecord


class Observer(Protocol):
    """Watches a run: a progress display, a tracker."""

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """The run begins, or resumes after the rounds in ``history``."""
        ...

    def round(self, record: Record) -> None:
        """A round is over."""
        ...

    def end(self, summary: Record) -> None:
        """The run is over."""
        ...


@dataclass(frozen=True, eq=False)
class Result:
    """What a run leaves: its summary, a record per round, the trained module, and where the files are."""

    summary: Record
    history: list[Record]
    model: nn.Module
    directory: Path | None


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
        self.diverged: str | None = None
        self._metrics: MetricsFile | None = None

    def execute(self) -> Result:
        """Run the rounds that are left; in a directory with a checkpoint, those after it."""
        with ExitStack() as stack:
            stack.enter_context(single_threaded())
            stack.enter_context(closing(self.coordinator.transport))
            # Workers that outlive this process by a moment must not keep its directory locked.
            self.coordinator.transport.start()
            if self.directory is not None:
                stack.enter_context(self.directory.in_use(self.patience))
            self._resume()
            for observer in self.observers:
                observer.start(self.setup, self.history)
            began = time.perf_counter() - (self.history[-1]["seconds"] if self.history else 0.0)
            try:
                while not self._finished():
                    try:
                        record = self.coordinator.run_round(len(self.history))
                    except DivergedError as error:
                        self.diverged = str(error)
                    else:
                        self._keep(record, began)
            finally:
                if self._metrics is not None:
                    self._metrics.close()
            summary = self._end(began)
        for observer in self.observers:
            observer.end(summary)
        return Result(summary, self.history, self._module(), self.directory.path if self.directory else None)

    def _resume(self) -> None:
        if self.directory is None:
            return
        rounds = load_checkpoint(self.directory.checkpoints, self.coordinator, self.coordinator.transport)
        self.history = self.directory.history(rounds)
        self._metrics = MetricsFile(self.directory.metrics, self.history)

    def _finished(self) -> bool:
        target = self.training.aim
        reached = bool(self.history) and reaches(self.setup.objective, self.history[-1], target)
        return self.diverged is not None or reached or len(self.history) >= self.training.rounds

    def _keep(self, result: RoundRecord, began: float) -> None:
        """Evaluate and write down what a round came to."""
        record, rounds = as_record(result, self.training.local_steps), result.round + 1
        if self.setup.evaluation.due(rounds):
            record |= self.evaluator.evaluate(result.round)
        record = with_aliases(record | {"seconds": round(time.perf_counter() - began, 4)})
        self.history.append(record)
        if self._metrics is not None and self.directory is not None:
            self._metrics.append(record)
            if rounds % self.setup.experiment.track.checkpoint_every == 0 or self._finished():
                self._metrics.sync()
                save_checkpoint(self.directory.checkpoints, rounds, self.coordinator, self.coordinator.transport)
        for observer in self.observers:
            observer.round(record)

    def _end(self, began: float) -> Record:
        """Evaluate what was not yet, and write the model and the summary."""
        history, seconds, merit = self.history, time.perf_counter() - began, self.setup.objective.merit
        wanted = self.training.evaluate_personalised_every != "never"
        if wanted and history and not any(f"personalised_{merit}" in record for record in history):
            # Stopped before the first evaluation of personalised models: do it now.
            history[-1] = with_aliases(history[-1] | self.evaluator.evaluate_personalised(history[-1]["round"]))
        scores = self.evaluator.scores(max(len(history) - 1, 0))
        summary = summary_of(self.setup, self.coordinator, history, scores, seconds, self.diverged)
        if self.directory is not None:
            self.save_model()
            self.directory.write_summary(summary)
        return summary

    def save_model(self) -> None:
        """Write the trained module into the directory."""
        assert self.directory is not None
        save_module(self._module(), self.directory.model)

    def _module(self) -> nn.Module:
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
    if result.changes:
        record["membership"] = [asdict(change) for change in result.changes]
    if result.server_state_reset:
        record["server_state_reset"] = True
    return record | ({"rejected": dict(result.rejected)} if result.rejected else {})
