"""Where to look for good hyper-parameters: what an algorithm declares in its `search_space`, for `efl tune`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from efl.errors import UserError

LEARNING_RATE = "training.learning_rate"


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, on a logarithmic scale unless ``log`` is false.

    >>> Range(0.01, 1.0).contains(0.1), Range(0.01, 1.0).contains(None)
    (True, False)
    >>> Range(1.0, 0.1)
    Traceback (most recent call last):
    efl.errors.UserError: a range goes up: 1 is not below 0.1
    """

    low: float
    high: float
    log: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise UserError("a range needs two finite numbers")
        if not self.low < self.high:
            raise UserError(f"a range goes up: {self.low:g} is not below {self.high:g}")
        if self.log and self.low <= 0:
            raise UserError(f"a logarithmic range starts above 0, not at {self.low:g}; write linear")

    def contains(self, value: Any) -> bool:
        """Whether a value can be found here."""
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high


@dataclass(frozen=True)
class Around:
    """A logarithmic range from 1/``factor`` to ``factor`` times what the experiment has.

    >>> Around(10).range(0.5)
    Range(low=0.05, high=5.0, log=True)
    """

    factor: float = 10.0

    def range(self, value: float) -> Range:
        """The range around a value."""
        return Range(value / self.factor, value * self.factor)


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[str | int | float | bool, ...]

    def contains(self, value: Any) -> bool:
        """Whether a value can be found here."""
        return value in self.values


SearchSpace = Mapping[str, Range | Around | Choice]
"""By hyper-parameter, or by key of an experiment such as ``training.learning_rate``."""
