"""The figures of a round in metrics.jsonl, under the names they have now and those of the first edition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from efl.reading import DamagedError

BUDGET = "the privacy budget"  # as what stopped a run
VERSION = 2  # of the names in metrics.jsonl and summary.json; without one, they are the first edition's
# The first edition's name, and the one now. Records have both: scripts may rely on the old ones.
RENAMED = {
    "asked": "sampled",
    "incomplete": "partial",
    "inactive": "dropped",
    "counted": "aggregated",
    "refused": "rejected",
    "forgot": "server_state_reset",
    "own_accuracy": "personalised_accuracy",
    "own_worst_decile": "personalised_worst_decile",
}


def with_aliases(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with every figure under its present name and under its old one, whichever edition wrote it.

    >>> with_aliases({"round": 0, "asked": 3, "partial": 1})
    {'sampled': 3, 'incomplete': 1, 'round': 0, 'asked': 3, 'partial': 1}
    """
    present = {new: record[old] for old, new in RENAMED.items() if old in record}
    former = {old: record[new] for old, new in RENAMED.items() if new in record}
    return {**present, **former, **record}


# What every summary, and every record of a round, has, whichever edition wrote it; and of what kind values are.
SUMMARISED = (
    "algorithm", "dataset", "seed", "rounds", "bmta_global", "bmta_local", "final_mean_accuracy",
    "worst_decile_accuracy", "train_loss", "bytes_up", "bytes_down", "seconds", "samples_per_second", "diverged",
    "parameters", "model_sha256", "accuracy_over_bytes",
)  # fmt: skip
RECORDED = ("round", "eta", "train_loss", "bytes_up", "bytes_down", "bytes", "clients", "seconds")
MAY_BE_UNKNOWN = ("bmta_global", "bmta_local", "final_mean_accuracy", "worst_decile_accuracy", "train_loss")
KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys((*SUMMARISED, *RECORDED, "sampled", "complete", "partial", "dropped", "accuracy"), (int, float)),
    **dict.fromkeys(
        ("simulated_seconds", "staleness", "seconds_to_target", "rounds_to_target", "target_accuracy"), (int, float)
    ),
    **dict.fromkeys(("asked", "incomplete", "inactive", "final_mean", "worst_decile"), (int, float)),
    **dict.fromkeys(("bytes", "clients", "rejected", "refused", "final_metrics", "by_client"), dict),
    **dict.fromkeys(("aggregated", "counted", "membership", "accuracy_over_bytes"), list),
    **dict.fromkeys(("algorithm", "dataset", "metric", "model_sha256", "diverged_reason"), str),
}
CHANGED = {"what": str, "clients": list, "why": str}  # an entry of membership
LARGEST_CLIENT = 10**9


def check_record(record: Any, number: int) -> dict[str, Any]:
    """A line of metrics.jsonl as it was read, for the round of this number; `DamagedError` if it cannot be one."""
    _check(record, RECORDED)
    if record["round"] != number:
        raise DamagedError(f"it is of round {record['round']}, and should be of {number}")
    clients, aggregated = record["clients"], record.get("aggregated", record.get("counted"))
    _check_numbers(clients, "clients")
    if not all(name.isdecimal() and int(name) <= LARGEST_CLIENT for name in clients):
        raise DamagedError("clients: not a table by number")
    if not isinstance(aggregated, list) or not {str(client) for client in aggregated} <= clients.keys():
        raise DamagedError("aggregated: not a list of its clients")
    _check_numbers(record.get("by_client", {}), "by_client")
    for direction, kinds in record["bytes"].items():
        _check_numbers(kinds, f"bytes.{direction}")
    for change in record.get("membership", []):
        if not (isinstance(change, dict) and all(isinstance(change.get(key), kind) for key, kind in CHANGED.items())):
            raise DamagedError("membership: not a list of changes")
        if not all(type(client) is int for client in change["clients"]):
            raise DamagedError("membership: not lists of clients")
    checked: dict[str, Any] = record
    return checked


def check_summary(summary: Any) -> dict[str, Any]:
    """What summary.json holds; `DamagedError` if it cannot be a summary."""
    _check(summary, SUMMARISED, ("clients",))  # here that is how many there are
    _check_numbers(summary.get("final_metrics", {}), "final_metrics")
    for point in summary["accuracy_over_bytes"]:
        if not (isinstance(point, list) and len(point) == 2 and all(isinstance(one, int | float) for one in point)):
            raise DamagedError("accuracy_over_bytes: not a list of pairs")
    checked: dict[str, Any] = summary
    return checked


def _check(record: Any, needed: tuple[str, ...], other: tuple[str, ...] = ()) -> None:
    """See that a record is a table with these keys, and that values are of the kinds that their keys have."""
    if not isinstance(record, dict):
        raise DamagedError("not a table")
    for key in needed:
        if key not in record or (record[key] is None and key not in MAY_BE_UNKNOWN):
            raise DamagedError(f"it has no {key}")
    metric = str(record.get("metric", "accuracy"))
    kinds = KINDS | dict.fromkeys((metric, f"personalised_{metric}"), (int, float))
    for key, value in record.items():
        if value is not None and key not in other and not isinstance(value, kinds.get(key, object)):
            raise DamagedError(f"{key:.60} is {value!r:.60}")


def _check_numbers(table: Any, what: str) -> None:
    if not isinstance(table, dict) or not all(
        value is None or isinstance(value, int | float) for value in table.values()
    ):
        raise DamagedError(f"{what:.60}: not a table of numbers")
