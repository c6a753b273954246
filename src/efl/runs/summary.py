"""What a run came to, in one record."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from torch import Tensor

from efl.runs.directory import Record
from efl.runs.evaluation import Scores, mean, worst_decile
from efl.runs.records import VERSION
from efl.runs.setup import Setup
from efl.server.coordinator import Coordinator
from efl.training.tasks import Objective


def summary_of(
    setup: Setup,
    coordinator: Coordinator,
    history: Sequence[Record],
    scores: Scores,
    seconds: float,
    diverged: str | None,
) -> Record:
    """The summary of a run: what was run, how good the model is, what it cost, and how it ended."""
    experiment = setup.experiment
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
        **_quality(setup.objective, history, scores),
        **_cost(coordinator, history, seconds),
        **_standing(coordinator),
        "diverged": diverged is not None,
        "diverged_reason": diverged,
        **_until_target(coordinator, history, setup.objective, experiment.training.aim),
        "model_sha256": model_sha256(vector, coordinator.buffers),
    }


def _quality(objective: Objective, history: Sequence[Record], scores: Scores) -> Record:
    """The figure of merit: the best there was, and the last; the keys named after accuracy are for accuracy alone."""
    merit, up = objective.merit, objective.higher_is_better
    known = {name: values[np.isfinite(values)] for name, values in scores.items()}
    final = mean(known[merit])
    worst = worst_decile(known[merit], higher_is_better=up) if len(known[merit]) else None
    accuracy = merit == "accuracy"
    return {
        "metric": merit,
        "higher_is_better": up,
        "metric_is_share": objective.share,
        "bmta_global": _best(history, merit, up),
        "bmta_local": _best(history, f"personalised_{merit}", up),
        "final_mean": final,
        "worst_decile": worst,
        "final_metrics": {name: mean(values) for name, values in known.items()},
        "final_mean_accuracy": final if accuracy else None,
        "worst_decile_accuracy": worst if accuracy else None,
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
        "peak_rss_mb": _peak_rss_mb(),
    }


def _standing(coordinator: Coordinator) -> Record:
    """The reputation of clients whose replies were rejected, or did not count in full; nothing if there are none."""
    table = coordinator.table
    reputation = table.reputation()
    found = {
        str(client): {
            "reputation": round(float(reputation[client]), 4),
            "trust": round(float(table.trust[client]), 4),
            "rejected": int(table.rejected[client]),
        }
        for client in np.flatnonzero((table.rejected > 0) | (table.trust < 1)).tolist()
    }
    return {"reputation": found} if found else {}


def _until_target(
    coordinator: Coordinator, history: Sequence[Record], objective: Objective, target: float | None
) -> Record:
    """The figure of merit by bytes, and what it took to reach the target."""
    reached = [record["round"] + 1 for record in history if reaches(objective, record, target)]
    simulated = history[-1].get("simulated_seconds") if history else None
    return {
        "accuracy_over_bytes": _over_bytes(history, objective.merit),
        "target_accuracy": target,
        "rounds_to_target": reached[0] if reached else None,
        "bytes_to_target": coordinator.ledger.up + coordinator.ledger.down if reached else None,
        "simulated_seconds": simulated,
        "seconds_to_target": simulated if reached else None,
    }


def reaches(objective: Objective, record: Record, target: float | None) -> bool:
    """Whether the figure of merit of a round is as good as the target, if there is one."""
    value = record.get(objective.merit)
    if target is None or value is None:
        return False
    return bool(value >= target if objective.higher_is_better else value <= target)


def model_sha256(w: Tensor, buffers: Tensor) -> str:
    """A fingerprint of the model, parameters and float buffers."""
    return hashlib.sha256(w.numpy().tobytes() + buffers.numpy().tobytes()).hexdigest()


def _over_bytes(history: Sequence[Record], merit: str) -> list[tuple[int, float]]:
    """The bytes sent until each evaluation of the global model, and its figure of merit."""
    sent = accumulate(record["bytes_up"] + record["bytes_down"] for record in history)
    pairs = zip(sent, history, strict=True)
    return [(total, record[merit]) for total, record in pairs if record.get(merit) is not None]


def _best(history: Sequence[Record], key: str, higher_is_better: bool) -> float | None:
    values = [record[key] for record in history if record.get(key) is not None]
    return (max if higher_is_better else min)(values, default=None)


def _peak_rss_mb() -> float | None:
    """None where the system does not say, as Windows."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
