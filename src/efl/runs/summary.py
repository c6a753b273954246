"""What a run came to, in one record."""

from __future__ import annotations

import hashlib
import resource
import sys
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from torch import Tensor

from efl.runs.directory import Record
from efl.runs.evaluation import Accuracies, mean, worst_decile
from efl.runs.records import VERSION
from efl.runs.setup import Setup
from efl.server.coordinator import Coordinator


def summary_of(
    setup: Setup,
    coordinator: Coordinator,
    history: Sequence[Record],
    accuracies: Accuracies,
    seconds: float,
    diverged: str | None,
) -> Record:
    """The summary of a run: what was run, how good the model is, what it cost, and how it ended."""
    experiment, final = setup.experiment, accuracies[np.isfinite(accuracies)]
    vector = coordinator.algorithm.evaluated_model(coordinator.server)
    return {
        "record_version": VERSION,
        "algorithm": experiment.algorithm_name,
        "dataset": setup.dataset,
        "partition": experiment.federation.partition,
        "model": experiment.model.name,
        "parameters": setup.model.n,
        "seed": experiment.training.seed,
        "rounds": len(history),
        "clients": setup.clients,
        "bmta_global": _best(history, "accuracy"),
        "bmta_local": _best(history, "personalised_accuracy"),
        "final_mean_accuracy": mean(final),
        "worst_decile_accuracy": worst_decile(final) if len(final) else None,
        **_cost(coordinator, history, seconds),
        "diverged": diverged is not None,
        "diverged_reason": diverged,
        **_until_target(coordinator, history, experiment.training.target_accuracy),
        "model_sha256": model_sha256(vector, coordinator.buffers),
    }


def _cost(coordinator: Coordinator, history: Sequence[Record], seconds: float) -> Record:
    """The last training loss, bytes, time and memory."""
    ledger = coordinator.ledger
    losses = [record["train_loss"] for record in history if record["train_loss"] is not None]
    steps = sum(record["clients"][str(client)] for record in history for client in record["aggregated"])
    return {
        "train_loss": losses[-1] if losses else None,
        "bytes_up": ledger.up,
        "bytes_down": ledger.down,
        "bytes": ledger.state_dict(),
        "seconds": round(seconds, 3),
        "samples_per_second": round(steps * coordinator.training.batch_size / max(seconds, 1e-9), 1),
        "peak_rss_mb": round(_peak_rss_mb(), 1),
    }


def _until_target(coordinator: Coordinator, history: Sequence[Record], target: float | None) -> Record:
    """Accuracy by bytes, and what it took to reach the target accuracy."""
    reached = [r["round"] + 1 for r in history if target is not None and (r.get("accuracy") or 0.0) >= target]
    simulated = history[-1].get("simulated_seconds") if history else None
    return {
        "accuracy_over_bytes": _accuracy_over_bytes(history),
        "target_accuracy": target,
        "rounds_to_target": reached[0] if reached else None,
        "bytes_to_target": coordinator.ledger.up + coordinator.ledger.down if reached else None,
        "simulated_seconds": simulated,
        "seconds_to_target": simulated if reached else None,
    }


def model_sha256(w: Tensor, buffers: Tensor) -> str:
    """A fingerprint of the model, parameters and float buffers."""
    return hashlib.sha256(w.numpy().tobytes() + buffers.numpy().tobytes()).hexdigest()


def _accuracy_over_bytes(history: Sequence[Record]) -> list[tuple[int, float]]:
    """The bytes sent until each evaluation of the global model, and its accuracy."""
    sent = accumulate(record["bytes_up"] + record["bytes_down"] for record in history)
    pairs = zip(sent, history, strict=True)
    return [(total, record["accuracy"]) for total, record in pairs if record.get("accuracy") is not None]


def _best(history: Sequence[Record], key: str) -> float | None:
    return max((record[key] for record in history if record.get(key) is not None), default=None)


def _peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
