"""The figures of a round in metrics.jsonl, under the names they have now and those of the first edition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
