"""What tables say of several seeds: means, paired differences with their intervals, and which of them mean something.

Methods on one setting share their seeds: the same data, cohorts and stragglers. So they are compared seed by seed, and
what the seeds have in common drops out. The interval of a mean difference is Student's, at 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import atan, cos, inf, pi, sin, sqrt
from statistics import fmean, stdev

CONFIDENCE = 0.95


def student_probability(t: float, degrees: int) -> float:
    """How probable a value within ±t is (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4; exact for whole degrees).

    >>> round(student_probability(1.0, 1), 12), round(student_probability(sqrt(2.0), 2), 12)
    (0.5, 0.707106781187)
    """
    angle = atan(t / sqrt(degrees))
    term, total = (cos(angle), 0.0) if degrees % 2 else (1.0, 0.0)
    for k in range(degrees % 2, degrees - 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k + 1) / (k + 2)
    return 2 / pi * (angle + sin(angle) * total) if degrees % 2 else sin(angle) * total


@lru_cache
def student_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The t within which a share ``confidence`` of Student's distribution lies.

    >>> [round(student_quantile(degrees), 3) for degrees in (1, 2, 4, 9, 30)]
    [12.706, 4.303, 2.776, 2.262, 2.042]
    """
    low, high = 0.0, 1.0
    while student_probability(high, degrees) < confidence:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_probability(middle, degrees) < confidence else (low, middle)
    return high


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds, and its interval, which is the whole line where there is one seed only."""

    mean: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """The mean of ours − theirs over the seeds that both have; None if there are none.

    >>> difference({0: 3.0, 1: 4.0, 2: 5.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    Difference(mean=2.0, low=2.0, high=2.0)
    """
    pairs = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if not pairs:
        return None
    if len(pairs) == 1:
        return Difference(pairs[0], -inf, inf)
    half = student_quantile(len(pairs) - 1) * stdev(pairs) / sqrt(len(pairs))
    return Difference(fmean(pairs), fmean(pairs) - half, fmean(pairs) + half)


def clear_winner(values: Mapping[str, Mapping[int, float]]) -> str | None:
    """Who has the greatest mean over seeds, if its difference from every other one is clear.

    >>> clear_winner({"A": {0: 0.90, 1: 0.92}, "B": {0: 0.80, 1: 0.82}, "C": {}})
    'A'
    """
    means = {name: fmean(of_seeds.values()) for name, of_seeds in values.items() if of_seeds}
    if len(means) < 2:
        return None
    best = max(means, key=lambda name: means[name])
    others = [difference(values[best], values[name]) for name in means if name != best]
    return best if all(one is not None and one.clear for one in others) else None


def difference_text(found: Difference | None, digits: int = 2) -> str:
    """A difference of shares in points, with its interval; in bold if that excludes 0.

    >>> difference_text(Difference(0.0123, 0.002, 0.0226)), difference_text(Difference(-0.01, -inf, inf))
    ('**+1.23** (+0.20 … +2.26)', '-1.00')
    """
    if found is None:
        return "–"
    text = f"{100 * found.mean:+.{digits}f}"
    if found.high == inf:
        return text
    return f"{bold(text) if found.clear else text} ({100 * found.low:+.{digits}f} … {100 * found.high:+.{digits}f})"


def bold(text: str) -> str:
    """In bold, as Markdown has it."""
    return f"**{text}**"


def by_seed(values: Sequence[tuple[int, float | None]]) -> dict[int, float]:
    """Values by seed, without those that are unknown."""
    return {seed: value for seed, value in values if value is not None}
