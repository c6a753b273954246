"""What compiled code finds and sorts is what NumPy does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from levels import LEVELS, using

from efl.layout import Layout
from efl.wire import coordinate_order, sparse
from efl.wire.coordinate_order import ByField


@pytest.fixture(scope="module", autouse=True, params=LEVELS)
def _level(request):
    with using(request.param):
        yield


def both_ways(compute):
    """What comes out with compiled code, and without."""
    results = [compute()]
    with pytest.MonkeyPatch.context() as patch:
        for module in (sparse, coordinate_order):
            patch.setattr(module, "loaded", lambda: None)
        results.append(compute())
    return results


@given(st.integers(0, 2**32), st.integers(0, 3000), st.sampled_from([0, 0.01, 0.5, 1]))
def test_non_zeros_are_found(seed, n, density):
    random = np.random.default_rng(seed)
    codes = np.where(random.random(n) < density, random.integers(-9, 9, n), 0).astype(np.int32)
    with_c, without = both_ways(lambda: [array.tolist() for array in sparse.non_zeros(codes)])
    assert with_c == without


@given(st.sets(st.integers(0, 100_000)), st.randoms(use_true_random=False))
def test_numbers_are_sorted(chosen, random):
    numbers = list(chosen)
    random.shuffle(numbers)
    with_c, without = both_ways(lambda: [array.tolist() for array in sparse.in_order(np.array(numbers, np.int64))])
    assert with_c == without
    assert with_c[0] == sorted(numbers)


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=4))
def test_coordinates_are_sorted_into_classes_and_back(seed, shapes):
    random = np.random.default_rng(seed)
    layout = Layout(tuple(shapes))
    blocks = [(block.rows, block.columns) for block in layout.blocks]
    order = ByField(
        layout, [(random.integers(-40, 40, rows), random.integers(-9, 9, columns)) for rows, columns in blocks]
    )
    chosen = np.flatnonzero(random.random(layout.n) < random.random())
    with_c, without = both_ways(lambda: order.place(chosen).tolist())
    assert with_c == without
    places = np.sort(np.array(with_c, np.int64))
    with_c, without = both_ways(lambda: order.position(places).tolist())
    assert with_c == without
    assert sorted(with_c) == chosen.tolist()
