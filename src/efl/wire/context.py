"""What both sides know before a message comes, and the shortest way to write positions given that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from efl.errors import WireError
from efl.layout import Layout
from efl.wire.coordinate_order import ByTensor, CoordinateOrder
from efl.wire.rank_one import RankOneFisher
from efl.wire.sparse import in_order

Positions = NDArray[np.int64]

LEVELS = (0, 2, 5)  # 2^level neighbouring classes coded as one: what is tried
ONE_CLASS = 5  # enough to merge the tensors of most networks
WORTH_SORTING = 2500  # non-zeros; in smaller models classes cost more of a round than they save of its bytes
_ALL = slice(None)


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
        return ONE_CLASS, merged_bounds(context.order(0).bounds, ONE_CLASS), positions, _ALL
    options = [_placed(positions, context.order(number)) for number in context.orders]
    best: tuple[float, int, int] = (np.inf, 0, 0)
    for number, (places, _) in enumerate(options):
        bounds = context.order(number).bounds
        taken = np.diff(np.searchsorted(places, bounds))
        for level in LEVELS:
            best = min(best, (_cost(*_merged(bounds, taken, level), class_bits), number, level))
            if len(bounds) <= 2 << level:
                break
    _, number, level = best
    return number << 4 | level, merged_bounds(context.order(number).bounds, level), *options[number]


def _placed(positions: Positions, order: CoordinateOrder) -> tuple[Positions, Positions | slice]:
    """Places in increasing order, and that order."""
    return in_order(order.place(positions)) if order.moves else (positions, _ALL)


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


def _merged(bounds: Positions, taken: Positions, level: int) -> tuple[Positions, Positions]:
    return np.diff(merged_bounds(bounds, level)), np.add.reduceat(taken, np.arange(0, len(taken), 1 << level))


def _cost(sizes: Positions, taken: Positions, class_bits: float) -> float:
    """About how many bits the positions take: entropy, and the counts themselves."""
    counts = class_bits * len(taken) + 8 * (np.count_nonzero(taken > 127) + np.count_nonzero(taken > 16383))
    return counts + 1.005 * entropy(sizes, taken)


def entropy(sizes: Positions, taken: Positions) -> float:
    """Bits for which of ``sizes`` places are taken in each class, if within a class all are equally likely.

    >>> round(entropy(np.array([1000, 50]), np.array([500, 0])))
    1000
    """
    used = (taken > 0) & (taken < sizes)
    n, k = sizes[used].astype(np.float64), taken[used].astype(np.float64)
    return float(n @ np.log2(n) - k @ np.log2(k) - (n - k) @ np.log2(n - k))
