"""A run: round after round, with evaluation, records, checkpoints and an end."""

from __future__ import annotations

import hashlib
import math
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from efl.algorithms.base import RoundSettings
from efl.runs.checkpoint import load_checkpoint, save_checkpoint
from efl.runs.evaluation import own_accuracies, worst_decile
from efl.runs.directory import MetricsFile, Record, RunDirectory
from efl.runs.evaluation_schedule import global_spacing, looked_at, own_spacing
from efl.processes import single_threaded
from efl.server.records import RoundRecord
from efl.runs.setup import Setup
from efl.errors import DivergedError
from efl.storage import write_atomically


class Observer(Protocol):
    """Someone who watches a run: a progress display, a tracker."""

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """The run begins, or goes on after the rounds in ``history``."""
        ...

    def round(self, record: Record) -> None:
        """A round was played."""
        ...

    def end(self, summary: Record) -> None:
        """The run is over."""
        ...


@dataclass(frozen=True, eq=False)
class Result:
    """What a run leaves: its summary, a record a round, the trained module, and where the files are."""

    summary: Record
    history: list[Record]
    model: nn.Module
    directory: Path | None


@dataclass(eq=False)
class Run:
    """One experiment, played to its end; ``patience`` is for another process on its way out of the directory."""

    setup: Setup
    directory: RunDirectory | None = None
    observers: Sequence[Observer] = ()
    history: list[Record] = field(default_factory=list)
    patience: float = 0.0

    def __post_init__(self) -> None:
        self.coordinator, self.host = self.setup.assemble(self.directory.state if self.directory else None)
        self.training = self.setup.experiment.training
        self.spacing = global_spacing(self.training, self.setup.federation)
        self.diverged: str | None = None
        self._metrics: MetricsFile | None = None

    def execute(self) -> Result:
        """Play the rounds that are left; in a directory with a checkpoint, those after it."""
        with ExitStack() as stack:
            stack.enter_context(single_threaded())
            stack.enter_context(closing(self.host))
            self.host.start()  # workers that outlive this process by a moment must not keep its directory locked
            if self.directory is not None:
                stack.enter_context(self.directory.in_use(self.patience))
            self._resume()
            for observer in self.observers:
                observer.start(self.setup, self.history)
            began = time.perf_counter() - (self.history[-1]["seconds"] if self.history else 0.0)
            try:
                while not self._finished():
                    self._play(began)
            finally:
                if self._metrics is not None:
                    self._metrics.close()
            summary = self._summary(time.perf_counter() - began)
            module = self._keep_model()
            if self.directory is not None:
                self.directory.write_summary(summary)
        for observer in self.observers:
            observer.end(summary)
        return Result(summary, self.history, module, self.directory.path if self.directory else None)

    def _resume(self) -> None:
        if self.directory is None:
            return
        rounds = load_checkpoint(self.directory.checkpoints, self.coordinator, self.host)
        self.history = self.directory.history(rounds)
        self._metrics = MetricsFile(self.directory.metrics, self.history)

    def _finished(self) -> bool:
        target = self.training.target_accuracy
        reached = target is not None and bool(self.history) and (self.history[-1].get("accuracy") or 0.0) >= target
        return self.diverged is not None or reached or len(self.history) >= self.training.rounds

    def _play(self, began: float) -> None:
        round_ = len(self.history)
        try:
            record = _as_record(self.coordinator.play(round_), self.training.local_steps)
        except DivergedError as error:
            self.diverged = str(error)
            return
        if (round_ + 1) % self.spacing == 0 or round_ + 1 == self.training.rounds:
            record |= self._evaluate(round_)
        record["seconds"] = round(time.perf_counter() - began, 4)
        self.history.append(record)
        if self._metrics is not None and self.directory is not None:
            self._metrics.append(record)
            if (round_ + 1) % self.setup.experiment.track.checkpoint_every == 0 or self._finished():
                self._metrics.sync()
                save_checkpoint(self.directory.checkpoints, round_ + 1, self.coordinator, self.host)
        for observer in self.observers:
            observer.round(record)

    def _evaluate(self, round_: int) -> Record:
        setup, coordinator = self.setup, self.coordinator
        vector = setup.algorithm.evaluated_model(coordinator.server)
        accuracies = self.host.accuracies(vector, coordinator.buffers)
        known = np.isfinite(accuracies)  # clients on other machines may be out of reach
        if not known.any():
            return {}
        scores: Record = {"accuracy": float(accuracies[known].mean()), "worst_decile": worst_decile(accuracies[known])}
        members = coordinator.members
        if not members.fixed:
            scores["member_accuracy"] = _mean(accuracies[known & members.objective(round_)])
            arrived = np.unique(members.calendar.arrives[known & (members.calendar.arrives <= round_)]).tolist()
            groups = {since: accuracies[known & (members.calendar.arrives == since)] for since in arrived}
            scores["accuracy_by_arrival"] = {str(since): _mean(group) for since, group in groups.items()}
        if self._looks_at_own_models(round_ + 1):
            scores |= self._evaluate_own(coordinator.settings(round_))
        return scores

    def _looks_at_own_models(self, rounds: int) -> bool:
        if self.training.evaluate_own_every == "never":
            return False
        own = own_spacing(self.training, len(self.setup.federation), self.spacing)
        return rounds % own == 0 or rounds == self.training.rounds

    def _evaluate_own(self, settings: RoundSettings) -> Record:
        coordinator, clients = self.coordinator, looked_at(self.training, len(self.setup.federation))
        own = own_accuracies(self.host, clients, coordinator.server, coordinator.buffers, settings)
        own = own[np.isfinite(own)]
        return {"own_accuracy": _mean(own), "own_worst_decile": worst_decile(own)} if len(own) else {}

    def _summary(self, seconds: float) -> Record:
        setup, history, ledger = self.setup, self.history, self.coordinator.ledger
        experiment = setup.experiment
        wanted = self.training.evaluate_own_every != "never"
        if wanted and history and not any("own_accuracy" in record for record in history):
            # Stopped before the first look at the clients' own models: look once, now.
            history[-1] |= self._evaluate_own(self.coordinator.settings(history[-1]["round"]))
        losses = [record["train_loss"] for record in history if record["train_loss"] is not None]
        steps = sum(record["clients"][str(client)] for record in history for client in record["counted"])
        vector = setup.algorithm.evaluated_model(self.coordinator.server)
        final = self.host.accuracies(vector, self.coordinator.buffers)
        final = final[np.isfinite(final)]
        return {
            "algorithm": experiment.algorithm_name,
            "dataset": setup.federation.name,
            "partition": experiment.federation.partition,
            "model": experiment.model.name,
            "parameters": setup.model.n,
            "seed": self.training.seed,
            "rounds": len(history),
            "clients": len(setup.federation),
            "bmta_global": _best(history, "accuracy"),
            "bmta_local": _best(history, "own_accuracy"),
            "final_mean_accuracy": _mean(final),
            "worst_decile_accuracy": worst_decile(final) if len(final) else None,
            "train_loss": losses[-1] if losses else None,
            "bytes_up": ledger.up,
            "bytes_down": ledger.down,
            "bytes": {direction: dict(kinds) for direction, kinds in ledger.total.items()},
            "seconds": round(seconds, 3),
            "samples_per_second": round(steps * self.training.batch_size / max(seconds, 1e-9), 1),
            "peak_rss_mb": round(_peak_rss_mb(), 1),
            "diverged": self.diverged is not None,
            "diverged_reason": self.diverged,
            "accuracy_over_bytes": _accuracy_over_bytes(history),
            "target_accuracy": self.training.target_accuracy,
            "rounds_to_target": self._rounds_to_target(),
            "bytes_to_target": ledger.up + ledger.down if self._rounds_to_target() else None,
            "simulated_seconds": history[-1].get("simulated_seconds") if history else None,
            "seconds_to_target": history[-1].get("simulated_seconds") if self._rounds_to_target() else None,
            "model_sha256": model_sha256(vector, self.coordinator.buffers),
        }

    def _rounds_to_target(self) -> int | None:
        target = self.training.target_accuracy
        if target is None:
            return None
        return next((r["round"] + 1 for r in self.history if (r.get("accuracy") or 0.0) >= target), None)

    def _keep_model(self) -> nn.Module:
        vector = self.setup.algorithm.evaluated_model(self.coordinator.server)
        module = self.setup.model.module_at(vector, self.coordinator.buffers)
        if self.directory is not None:
            tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
            write_atomically(self.directory.model, save(tensors))
        return module


def model_sha256(w: Tensor, buffers: Tensor) -> str:
    """A fingerprint of the model, parameters and float buffers."""
    return hashlib.sha256(w.numpy().tobytes() + buffers.numpy().tobytes()).hexdigest()


def _as_record(played: RoundRecord, local_steps: int) -> Record:
    steps = played.steps
    record: dict[str, Any] = {
        "round": played.round,
        "eta": played.eta,
        "asked": len(steps),
        "complete": sum(done >= local_steps for done in steps.values()),
        "incomplete": sum(0 < done < local_steps for done in steps.values()),
        "inactive": sum(done == 0 for done in steps.values()),
        "train_loss": None if math.isnan(played.train_loss) else played.train_loss,
        "bytes_up": sum(played.bytes["up"].values()),
        "bytes_down": sum(played.bytes["down"].values()),
        "bytes": {direction: dict(kinds) for direction, kinds in played.bytes.items()},
        **({} if played.time is None else {"simulated_seconds": played.time}),
        "clients": {str(client): done for client, done in sorted(steps.items())},
        "counted": sorted(played.counted),
    }
    if played.changes:
        record["membership"] = [asdict(change) for change in played.changes]
    if played.forgot:
        record["forgot"] = True
    return record | ({"refused": dict(played.refused)} if played.refused else {})


def _accuracy_over_bytes(records: Sequence[Record]) -> list[tuple[int, float]]:
    """The bytes sent until each look at the global model, and what it found."""
    sent = accumulate(record["bytes_up"] + record["bytes_down"] for record in records)
    looks = zip(sent, records, strict=True)
    return [(total, record["accuracy"]) for total, record in looks if record.get("accuracy") is not None]


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _best(records: Sequence[Record], key: str) -> float | None:
    return max((record[key] for record in records if record.get(key) is not None), default=None)


def _peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
