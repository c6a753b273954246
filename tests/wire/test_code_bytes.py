"""Codes as bytes: compiled code writes and reads what Python does, byte for byte, and both refuse the same."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from levels import LEVELS

from efl.errors import WireError
from efl.layout import Layout
from efl.native import Loops, load
from efl.wire import code_bytes as module
from efl.wire import coordinate_order
from efl.wire.code_bytes import code_bytes, most_code_bytes, read_codes
from efl.wire.coordinate_order import EVERY, ByField, ByTensor, CoordinateOrder, Whole
from efl.wire.range_coder import LARGEST, symbols_of
from efl.wire.reader import Reader, varints

MOST = 2**24


@pytest.fixture(scope="module", params=LEVELS)
def compiled(request: pytest.FixtureRequest) -> Loops:
    return load(request.param)


@contextmanager
def using(kind: Loops | None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for one in (module, coordinate_order):
            patch.setattr(one, "loaded", lambda: kind)
        yield


class Classes(ByTensor):
    """Classes of any size, where everything is."""

    def __init__(self, bounds: Whole) -> None:
        self.__dict__["bounds"] = bounds


def read(data: bytes, order: CoordinateOrder) -> Any:
    """What is read, and how many bytes that is; None if it is refused."""
    reader = Reader(memoryview(data))
    try:
        positions, codes = read_codes(reader, order, order.bounds, MOST)
    except (WireError, ValueError, OverflowError, AssertionError):
        return None
    return positions.tolist(), codes.tolist(), reader.at


@st.composite
def classes(draw: st.DrawFn) -> tuple[Whole, Whole]:
    """Places in classes of any size and density, from none to all."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.one_of(st.integers(0, 40), st.integers(1000, 20_000)), min_size=1, max_size=5))
    dense = [random.random(size) < draw(st.sampled_from([0, 1e-4, 0.01, 0.3, 0.9, 1])) for size in sizes]
    return np.flatnonzero(np.concatenate(dense)), np.cumsum([0, *sizes])


@st.composite
def codes_at(draw: st.DrawFn, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Codes that are mostly small."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0, 1, 9, 23]))
    codes = np.exp2(random.random(count) ** 4 * spread).astype(np.int32) * random.choice([-1, 1], count)
    if draw(st.booleans()) and count:
        codes[-1] = 1 - MOST
    return codes.astype(np.int32)


@given(st.data())
def test_both_write_and_read_the_same(compiled: Loops, data: st.DataObject) -> None:
    places, bounds = data.draw(classes())
    codes = data.draw(codes_at(len(places)))
    written = []
    for kind in (None, compiled):
        with using(kind):
            written.append(code_bytes(codes, places, EVERY, bounds))
    assert written[0] == written[1]
    assert len(written[0]) <= most_code_bytes(int(bounds[-1]), len(bounds) - 1)
    for kind in (None, compiled):
        with using(kind):
            assert read(written[0] + b"more", Classes(bounds)) == (places.tolist(), codes.tolist(), len(written[0]))


@given(st.data())
def test_in_the_order_of_a_field(compiled: Loops, data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    layout = Layout(tuple(data.draw(st.lists(st.tuples(*[st.integers(1, 30)] * 2), min_size=1, max_size=4))))
    order = ByField(
        layout, [(random.integers(-40, 40, b.rows), random.integers(-9, 9, b.columns)) for b in layout.blocks]
    )
    positions = np.flatnonzero(random.random(layout.n) < random.random())
    codes = data.draw(codes_at(len(positions)))
    written = []
    for kind in (None, compiled):
        with using(kind):
            places, which = order.placed(positions)
            written.append(code_bytes(codes, places, which, order.bounds))
    assert written[0] == written[1]
    for kind in (None, compiled):
        with using(kind):
            assert read(written[0], order) == (positions.tolist(), codes.tolist(), len(written[0]))


@given(st.data())
def test_damage_is_refused_by_both_or_by_none(compiled: Loops, data: st.DataObject) -> None:
    """Without a checksum in between; whatever is read is codes at increasing positions."""
    places, bounds = data.draw(classes())
    codes = data.draw(codes_at(len(places)))
    with using(None):
        body = bytearray(code_bytes(codes, places, EVERY, bounds))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.sampled_from([len(body), len(body) - 1, len(body) // 2]))]
    with using(compiled):
        found = read(bytes(body), Classes(bounds))
    if found is not None:
        assert (np.diff(found[0], prepend=-1, append=bounds[-1]) > 0).all()
        assert 0 < np.abs(found[1] or [1]).min() <= np.abs(found[1] or [1]).max() <= MOST
    with using(None):
        assert read(bytes(body), Classes(bounds)) == found


@pytest.mark.parametrize("counts", [[11], [5, 44], [5, 1, 4], [5, 2, 9, 2**62], [5, 1, 5, 2**60], [2**63 - 1], [5]])
def test_counts_that_cannot_be(compiled: Loops, counts: list[int]) -> None:
    for kind in (None, compiled):
        with using(kind):
            assert read(varints(counts) + bytes(8), Classes(np.array([0, 10]))) is None


def test_few_bytes_never_make_long_vectors(compiled: Loops) -> None:
    """Such as say that every place is taken, by codes that are all alike: nothing of them would have to be sent."""
    n = 10**7
    claim = varints([n, 1, n, 0]) + bytes(100)
    for kind in (None, compiled):
        tracemalloc.start()
        with using(kind):
            assert read(claim, Classes(np.array([0, n]))) is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
        tracemalloc.stop()


def test_a_symbol_that_occurs_never_is_no_table(compiled: Loops) -> None:
    for kind in (None, compiled):
        with using(kind):
            assert read(varints([0, 4, 0, 0, 0, 0, 0]), Classes(np.array([0, 10]))) is None


def test_symbols_by_hand() -> None:
    assert symbols_of(np.array([0, 15, 16, 31, 32, LARGEST], np.int32)).tolist() == [0, 15, 16, 16, 17, 42]
