import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efl.errors import WireError
from efl.wire import Dense, Field, Ternary, decode, encode
from efl.wire.positions import pack_positions, unpack_positions


def random_ternary(n, k, seed, segments=1):
    rng = np.random.default_rng(seed)
    positions = np.sort(rng.choice(n, k, replace=False))
    cuts = np.sort(rng.integers(0, k + 1, segments - 1))
    counts = tuple(np.diff([0, *cuts, k]).tolist())
    scales = rng.random(segments).astype(np.float32)
    return Ternary(n, positions, rng.random(k) < 0.5, counts, scales)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_positions_survive_the_way(data):
    n = data.draw(st.integers(1, 3000))
    positions = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1)))), dtype=np.int64)
    packed = pack_positions(positions)
    assert np.array_equal(unpack_positions(packed, n), positions)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 5000), share=st.floats(0, 1), seed=st.integers(0, 99), segments=st.integers(1, 5))
def test_ternary_survives_the_way(n, share, seed, segments):
    sent = random_ternary(n, int(n * share), seed, segments)
    got = decode(encode(sent), n)
    assert np.array_equal(got.positions, sent.positions)
    assert np.array_equal(got.values, sent.values)
    reference = np.random.default_rng(seed).normal(size=n).astype(np.float32)
    expected = reference.copy()
    expected[sent.positions] += sent.values
    assert np.array_equal(got.onto(reference), expected)


def test_dense_survives_the_way_and_replaces():
    values = np.random.default_rng(0).normal(size=100).astype(np.float32)
    got = decode(encode(Dense(values)), 100)
    assert np.array_equal(got.onto(np.zeros(100, np.float32)), values)


def test_sparse_field_is_rounded_on_the_way_once():
    rng = np.random.default_rng(0)
    fisher = np.exp(rng.normal(size=50) * 4).astype(np.float32)
    moved = rng.normal(size=50).astype(np.float32)
    index = np.sort(rng.choice(1000, 50, replace=False))
    got = decode(encode(Field(1000, index, fisher, moved)), 1000)
    assert np.array_equal(got.index, index)
    assert np.allclose(got.fisher, fisher, rtol=0.05)
    assert np.allclose(got.displacement, moved, rtol=2**-8)
    again = decode(encode(got), 1000)
    assert np.array_equal(again.fisher, got.fisher)
    assert np.array_equal(again.displacement, got.displacement)


def test_dense_field_is_exact():
    rng = np.random.default_rng(0)
    field = Field(40, None, rng.random(40).astype(np.float32), rng.normal(size=40).astype(np.float32))
    got = decode(encode(field), 40)
    assert got.index is None
    assert np.array_equal(got.fisher, field.fisher)
    assert np.array_equal(got.displacement, field.displacement)


def test_uniform_positions_cost_little_more_than_their_entropy():
    n, k = 10_000_000, 100_000
    q = k / n
    limit = (-(q * np.log2(q) + (1 - q) * np.log2(1 - q)) / q + 1) * k / 8
    assert len(encode(random_ternary(n, k, 0))) < 1.005 * limit


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_payloads_are_refused_or_valid(data):
    n = 500
    blob = bytearray(encode(random_ternary(n, 40, 1, segments=3)))
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "noise"]))
    if kind == "flip":
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        blob = blob[: data.draw(st.integers(0, len(blob) - 1))]
    elif kind == "grow":
        blob += data.draw(st.binary(min_size=1, max_size=20))
    else:
        blob = bytearray(data.draw(st.binary(max_size=200)))
    try:
        got = decode(bytes(blob), n)
    except WireError:
        return
    if isinstance(got, Ternary):
        assert got.positions.max(initial=0) < n
        assert np.isfinite(got.values).all()


@pytest.mark.parametrize(
    "payload",
    [
        Dense(np.array([1.0, np.nan], dtype=np.float32)),
        Dense(np.array([1.0, 2.0, 3.0], dtype=np.float32)),
        Field(2, None, np.array([-1.0, 1.0], dtype=np.float32), np.zeros(2, np.float32)),
    ],
)
def test_impossible_values_are_refused(payload):
    with pytest.raises(WireError):
        decode(encode(payload), 2)
