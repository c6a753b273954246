"""Numbers as people read them."""

from collections.abc import Mapping
from typing import Any


def bytes_text(count: float) -> str:
    """A byte count in the unit that suits it.

    >>> bytes_text(999), bytes_text(123_456), bytes_text(7_300_000)
    ('999 B', '123 kB', '7.3 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def percent(value: float | None) -> str:
    """An accuracy.

    >>> percent(0.9374), percent(None)
    ('93.7 %', '–')
    """
    return "–" if value is None else f"{100 * value:.1f} %"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def outcome(summary: Mapping[str, Any]) -> str:
    """How a run ended, in a few words."""
    if summary["diverged"]:
        return f"diverged after {summary['rounds']} rounds: {summary['diverged_reason']}"
    if summary.get("rounds_to_target"):
        return f"target accuracy reached after {summary['rounds_to_target']} rounds"
    return f"{summary['rounds']} rounds"
