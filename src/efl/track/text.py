"""Numbers as people read them."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from efl.runs.records import BUDGET


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


def merit(value: float | None, share: bool = True) -> str:
    """A figure of merit: a share in percent, any other number with four digits that count.

    >>> merit(0.9374), merit(0.93741, share=False), merit(12.5, share=False), merit(None)
    ('93.7 %', '0.9374', '12.5', '–')
    """
    return "–" if value is None else percent(value) if share else f"{value:.4g}"


def mean_and_deviation(values: Sequence[float], digits: int = 1, *, share: bool = True) -> str:
    """Mean ± standard deviation, of shares in percent; a dash where there is nothing.

    >>> mean_and_deviation([0.5, 0.7]), mean_and_deviation([0.5], digits=2), mean_and_deviation([])
    ('60.0 ± 14.1', '50.00', '–')
    >>> mean_and_deviation([2.0, 4.0], share=False)
    '3 ± 1.414'
    """
    if not values:
        return "–"
    if not share:
        return f"{mean(values):.4g}" + (f" ± {stdev(values):.4g}" if len(values) > 1 else "")
    deviation = f" ± {100 * stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.{digits}f}{deviation}"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> duration(42), duration(5400), duration(200_000)
    ('42 s', '1.5 h', '2.3 days')
    """
    for unit, size, most in (("s", 1, 120), ("min", 60, 60), ("h", 3600, 48)):
        if seconds < size * most:
            return f"{seconds:.0f} s" if size == 1 else f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86400:.1f} days"


def change_lines(record: Mapping[str, Any]) -> list[str]:
    """Who came and went in a round, and why, a line each.

    >>> change_lines({"round": 59, "membership": [{"what": "arrived", "clients": [3, 4, 5, 9], "why": "as planned"}]})
    ['round 60: arrived: 4 clients (3–5, 9), as planned']
    """
    return [
        f"round {record['round'] + 1}: {change['what']}: {_clients(change['clients'])}, {change['why']}"
        for change in record.get("membership", [])
    ]


def _clients(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"client {numbers[0]}"
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    text = ", ".join("–".join(map(str, span)) for span in spans[:10])
    return f"{len(numbers)} clients ({text}{', …' if len(spans) > 10 else ''})"


def outcome(summary: Mapping[str, Any]) -> str:
    """How a run ended, in a few words."""
    if summary["diverged"]:
        return f"diverged after {summary['rounds']} rounds: {summary['diverged_reason']}"
    if summary.get("rounds_to_target"):
        return f"target {summary.get('metric', 'accuracy')} reached after {summary['rounds_to_target']} rounds"
    if summary.get("epsilon_budget") is not None and summary.get("stopped") == BUDGET:
        return f"{summary['rounds']} rounds; another one would exceed {BUDGET} of ε = {summary['epsilon_budget']:g}"
    return f"{summary['rounds']} rounds"
