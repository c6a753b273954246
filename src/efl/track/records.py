"""Records of rounds, and summaries, under the names they have now, whichever edition wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of metrics.jsonl; the first edition's name, and the one it has now.
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
    """A record with every figure under its present name; one that has both names is left as it is.

    >>> upgraded({"round": 0, "asked": 3, "incomplete": 1, "sampled": 3})
    {'round': 0, 'asked': 3, 'incomplete': 1, 'sampled': 3, 'partial': 1}
    """
    added = {new: record[old] for old, new in RENAMED.items() if old in record and new not in record}
    return {**record, **added}
