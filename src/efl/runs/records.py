"""The figures of a round in metrics.jsonl, under the names they have now and those of the first edition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def upgraded(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with every figure also under its present name, whichever edition wrote it.

    >>> upgraded({"round": 0, "asked": 3, "incomplete": 1, "sampled": 3})
    {'round': 0, 'asked': 3, 'incomplete': 1, 'sampled': 3, 'partial': 1}
    """
    added = {new: record[old] for old, new in RENAMED.items() if old in record and new not in record}
    return {**record, **added}
