"""What both sides know before a message comes, and the shortest way to write positions given that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.coordinate_order import EVERY, ByTensor, CoordinateOrder
from efl.wire.rank_one import RankOneFisher

Positions = NDArray[np.int64]

LEVELS = (0, 2, 5)  # 2^level neighbouring classes coded as one: what is tried
ONE_CLASS = 5  # enough to merge the tensors of most networks
WORTH_SORTING = 2500  # non-zeros; in smaller models classes cost more of a round than they save of its bytes


@dataclass(frozen=True)
class Context:
    """What both sides know: how the vector is made of tensors, and a field, where they share one."""

    layout: Layout
    field: RankOneFisher | None = None

    @property
    def orders(self) -> range:
        """The numbers of the ways to sort coordinates into classes."""
        return range(1 if self.field is None else 2)

    def order(self, number: int) -> CoordinateOrder:
        """A way to sort them, made when it is first needed."""
        return self.field.order if number and self.field is not None else self._by_tensor

    @cached_property
    def bounds(self) -> dict[int, Positions]:
        """Class bounds by the number of a scheme, as far as they were needed."""
        return {}

    def classes(self, number: int) -> MergedClasses:
        """The classes of such a way, made when they are first needed."""
        if number not in self._classes:
            self._classes[number] = MergedClasses(self.order(number).bounds)
        return self._classes[number]

    @cached_property
    def _classes(self) -> dict[int, MergedClasses]:
        return {}

    @cached_property
    def _by_tensor(self) -> CoordinateOrder:
        return ByTensor(self.layout)

    @classmethod
    def flat(cls, n: int) -> Context:
        """A vector of which nothing more is known."""
        return cls(Layout.flat(n))


def cheapest_order(
    positions: Positions, context: Context, class_bits: float = 8
) -> tuple[int, Positions, Positions, Positions | slice]:
    """The cheapest scheme for these positions: its number, class bounds, the places, and the order they come in.

    ``class_bits`` is what a class must save to be worth it: its count, and the time it takes.
    """
    if len(positions) < WORTH_SORTING:
        return ONE_CLASS, scheme(ONE_CLASS, context)[1], positions, EVERY
    options = [context.order(number).placed(positions) for number in context.orders]
    best: tuple[float, int, int] = (np.inf, 0, 0)
    for number, (places, _) in enumerate(options):
        costs = context.classes(number).costs(places, class_bits)
        best = min(best, *((cost, number, level) for cost, level in zip(costs, LEVELS, strict=False)))
    _, number, level = best
    code = number << 4 | level
    return code, scheme(code, context)[1], *options[number]


def scheme(code: int, context: Context) -> tuple[CoordinateOrder, Positions]:
    """The order and class bounds that a scheme's number stands for."""
    number, level = code >> 4, code & 15
    if number not in context.orders:
        raise WireError("coded by a field that this side does not have")
    order = context.order(number)
    if code not in context.bounds:
        context.bounds[code] = merged_bounds(order.bounds, level)
    return order, context.bounds[code]


def merged_bounds(bounds: Positions, level: int) -> Positions:
    """2^level neighbouring classes taken as one."""
    return np.append(bounds[:-1][:: 1 << level], bounds[-1])


class MergedClasses:
    """The classes of an order at every level that differs, one level after the other."""

    def __init__(self, bounds: Positions) -> None:
        classes = len(bounds) - 1
        levels = [level for number, level in enumerate(LEVELS) if number == 0 or classes > 1 << LEVELS[number - 1]]
        begins = [np.arange(0, classes, 1 << level) for level in levels]
        self._begins = np.concatenate(begins)
        self._ends = np.concatenate([np.append(begin[1:], classes) for begin in begins])
        self._levels = np.cumsum([0, *(len(begin) for begin in begins[:-1])])
        self._bounds, self._sizes = bounds, (bounds[self._ends] - bounds[self._begins]).astype(np.float64)
        self._whole = _n_log_n(self._sizes)

    def costs(self, places: Positions, class_bits: float) -> list[float]:
        """About how many bits the places take at each level: entropy, and the counts of classes themselves."""
        stops = np.searchsorted(places, self._bounds)
        taken = (stops[self._ends] - stops[self._begins]).astype(np.float64)
        bits = self._whole - _n_log_n(taken) - _n_log_n(self._sizes - taken)
        counts = 8.0 * (taken > 127) + 8.0 * (taken > 16383) + class_bits
        costs: list[float] = np.add.reduceat(counts + 1.005 * bits, self._levels).tolist()
        return costs


def _n_log_n(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """For whole numbers; 0 for 0."""
    return numbers * np.log2(np.maximum(numbers, 1))


def entropy(sizes: Positions, taken: Positions) -> float:
    """Bits for which of ``sizes`` places are taken in each class, if within a class all are equally likely.

    >>> round(entropy(np.array([1000, 50]), np.array([500, 0])))
    1000
    """
    n, k = sizes.astype(np.float64), taken.astype(np.float64)
    return float((_n_log_n(n) - _n_log_n(k) - _n_log_n(n - k)).sum())
