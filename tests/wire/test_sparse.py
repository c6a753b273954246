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
    with_c, without = both_ways(lambda: [array.tolist() for array in order.placed(chosen)])
    assert with_c == without
    assert with_c[0] == places.tolist()
    with_c, without = both_ways(lambda: [array.tolist() for array in order.located(places)])
    assert with_c == without
    assert with_c[0] == chosen.tolist()


@pytest.mark.parametrize("wrong", [[-1], [24], [2**40], [3, 30], [20, 2]])
def test_nothing_is_sorted_that_is_no_coordinate_or_not_increasing(wrong):
    """Compiled code reads no table beyond its end."""
    order = ByField(Layout(((4, 5), (4,))), [(np.arange(4), np.arange(5)), (np.zeros(1, int), np.arange(4))])
    for sort in (order.place, order.placed, order.position, order.located):
        with pytest.raises(IndexError):
            sort(np.array(wrong))


@given(st.integers(0, 2**32), st.integers(0, 3000), st.floats(0.125, 1024, width=32))
def test_noise_is_what_numpy_draws(seed, n, step):
    vector = (10 * np.random.default_rng(seed).normal(size=n)).astype(np.float32)
    with_c, without = both_ways(
        lambda: [
            array.tolist() for array in sparse.rounded_randomly(vector, np.float32(step), np.random.default_rng(seed))
        ]
    )
    assert with_c == without


def test_noise_of_other_generators_and_of_one_in_between_two_numbers():
    vector, step = np.linspace(-9, 9, 99, dtype=np.float32), np.float32(2)
    for make in (lambda: np.random.Generator(np.random.Philox(3)), lambda: np.random.default_rng(3)):
        drawn, own = make(), make()
        assert drawn.random(dtype=np.float32) == own.random(dtype=np.float32)
        expected = sparse.rounded_down(vector, step, drawn.random(99, dtype=np.float32))
        for found, right in zip(sparse.rounded_randomly(vector, step, own), expected, strict=True):
            assert found.tolist() == right.tolist()


@given(st.integers(0, 2**32), st.integers(1, 2000), st.sampled_from([1, 2, 1024]))
def test_codes_are_added_where_they_belong(seed, n, factor):
    random = np.random.default_rng(seed)
    start, chosen = random.integers(-99, 99, n).astype(np.int32), np.flatnonzero(random.random(n) < 0.3)
    codes = random.integers(-99, 99, len(chosen)).astype(np.int32)

    def summed():
        total = start.copy()
        sparse.add_codes(total, chosen, codes, factor)
        return total.tobytes()

    with_c, without = both_ways(summed)
    assert with_c == without


@given(st.integers(0, 2**32), st.integers(0, 2000), st.floats(0.125, 1024, width=32))
def test_vectors_are_measured_and_rounded(seed, n, step):
    random = np.random.default_rng(seed)
    vector, noise = (10 * random.normal(size=n)).astype(np.float32), random.random(n, dtype=np.float32)
    with_c, without = both_ways(lambda: sparse.squared_length(vector))
    assert with_c == without == pytest.approx(float(vector.astype(np.float64) @ vector), rel=1e-12)
    with_c, without = both_ways(
        lambda: [array.tolist() for array in sparse.rounded_down(vector, np.float32(step), noise)]
    )
    assert with_c == without


@given(st.integers(0, 2**32), st.integers(1, 2000), st.floats(-9, 9, width=32))
def test_values_are_added_where_they_belong(seed, n, weight):
    random = np.random.default_rng(seed)
    start, chosen = random.normal(size=n).astype(np.float32), np.flatnonzero(random.random(n) < 0.3)
    values = random.normal(size=len(chosen)).astype(np.float32)

    def summed():
        total = start.copy()
        sparse.add_at(total, chosen, values, weight)
        return total.tobytes()

    with_c, without = both_ways(summed)
    assert with_c == without


@pytest.mark.parametrize("outside", [-1, 3, 2**40])
def test_nothing_is_added_outside_a_vector(outside):
    where, ones = np.array([0, outside]), np.ones(2, np.float32)

    def refused():
        with pytest.raises(IndexError):
            sparse.add_at(np.zeros(3, np.float32), where, ones, 1.0)
        with pytest.raises(IndexError):
            sparse.add_codes(np.zeros(3, np.int32), where, np.ones(2, np.int32), 1)
        with pytest.raises(IndexError):
            sparse.summed_by_remainder(where, ones, np.ones(3, np.float32), 2)

    both_ways(refused)


def test_as_many_values_as_positions_of_whatever_kind():
    total = np.zeros(3, np.float32)
    sparse.add_at(total, np.array([0, 2], np.int32), np.array([1.0, 2.0]), 2.0)
    assert total.tolist() == [2, 0, 4]
    with pytest.raises(IndexError):
        sparse.add_at(total, np.array([0, 1, 2]), np.ones(2, np.float32), 1.0)


@given(st.integers(0, 2**32), st.integers(1, 3000), st.integers(1, 400))
def test_values_are_summed_by_remainder(seed, n, width):
    random = np.random.default_rng(seed)
    chosen, signs = np.flatnonzero(random.random(n) < 0.3), random.choice(np.float32([-1, 1]), n)
    values = random.normal(size=len(chosen)).astype(np.float32)
    with_c, without = both_ways(lambda: sparse.summed_by_remainder(chosen, values, signs, width).tolist())
    assert with_c == without
