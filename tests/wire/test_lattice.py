"""Lattice increments: exact both ways, at their entropy, and summed without rounding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efl.errors import WireError
from efl.wire import BroadcastLog, CatchUp, Context, Dense, Lattice, Layout, RankOneFisher, decode, encode
from efl.wire.payloads.lattice import LARGEST_CODE, total
from efl.wire.range_coder import PLAIN
from efl.wire.reader import opened, sealed

SHAPES = ((30, 20), (30,), (10, 30), (10,))
LAYOUT = Layout(SHAPES)


def same(one, other):
    return (
        np.array_equal(one.positions, other.positions)
        and np.array_equal(one.codes, other.codes)
        and one.step == other.step
    )


def lattice(codes, step=0.5, layout=None):
    codes = np.asarray(codes, dtype=np.int32)
    return Lattice.of(layout or Layout.flat(len(codes)), codes, step)


codes = st.one_of(st.just(0), st.integers(-3, 3), st.integers(-40, 40), st.integers(1 - LARGEST_CODE, LARGEST_CODE - 1))


@settings(max_examples=300, deadline=None)
@given(st.lists(codes, min_size=1, max_size=400), st.floats(2**-90, 2**90, width=32))
def test_what_is_written_is_read(codes, step):
    sent = lattice(codes, step)
    context = Context(sent.layout)
    blob = encode(sent, context)
    assert len(blob) <= Lattice.most_bytes(sent.layout) + 4
    assert same(decode(blob, context), sent)


def test_values_by_hand():
    sent = lattice([0, 3, -1, 0], 0.25)
    assert sent.positions.tolist() == [1, 2]
    assert sent.values.tolist() == [0.75, -0.25]
    assert sent.onto(np.float32([1, 1, 1, 1])).tolist() == [1, 1.75, 0.75, 1]
    summed = np.zeros(4, np.float32)
    sent.add_to(summed, 2.0, summed)
    assert summed.tolist() == [0, 1.5, -0.5, 0]


@pytest.mark.parametrize("n", [1, 5, 3000])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.4, 1.0])
def test_nothing_and_everything(n, share):
    rng = np.random.default_rng(n)
    sent = lattice(np.where(rng.random(n) < share, 1, 0))
    assert same(decode(encode(sent, Context(sent.layout)), Context(sent.layout)), sent)


def test_gaps_longer_than_the_table_and_all_magnitudes():
    n = 100_000
    codes = np.zeros(n, np.int32)
    codes[[3, 5000, 5001, n - 1]] = [PLAIN, -PLAIN - 1, 2**20 + 7, 1 - LARGEST_CODE]
    sent = lattice(codes)
    assert same(decode(encode(sent, Context(sent.layout)), Context(sent.layout)), sent)


def by_field(rng, layout):
    fisher = np.exp(2 * rng.normal(size=layout.n)).astype(np.float32)
    return RankOneFisher.of(fisher, layout)


def test_classes_of_a_field_make_it_shorter_and_keep_it_exact():
    rng = np.random.default_rng(0)
    layout = Layout(((300, 200), (300,)))
    rows, columns = np.exp(2 * rng.normal(size=300)), np.exp(2 * rng.normal(size=200))
    fisher = np.append(np.outer(rows, columns).ravel(), rows).astype(np.float32)
    context = Context(layout, RankOneFisher.of(fisher, layout))
    sent = lattice(rng.poisson(np.minimum(0.05 * np.sqrt(fisher), 2)) * rng.choice([-1, 1], layout.n), layout=layout)
    blob = encode(sent, context)
    assert len(blob) < 0.95 * len(encode(sent, Context(layout)))
    assert same(decode(blob, context), sent)


@pytest.mark.parametrize("a", [1, 2, 4, 8, 16])
def test_bytes_are_within_a_hundredth_of_the_entropy(a):
    """Of independent codes, zeros included, at the steps and sizes that are used."""
    rng = np.random.default_rng(a)
    n = 200_000
    x = rng.standard_t(3, n)
    sent = lattice(np.floor(x / (a * np.sqrt(np.square(x).mean())) + rng.random(n)))
    _, counts = np.unique(np.append(sent.codes, np.zeros(n - len(sent.codes))), return_counts=True)
    entropy = -(counts * np.log2(counts / n)).sum() / 8
    assert len(encode(sent, Context(sent.layout))) <= 1.01 * entropy


def test_damage_is_an_error_of_one_type():
    rng = np.random.default_rng(1)
    sent = lattice(np.where(rng.random(LAYOUT.n) < 0.2, rng.integers(-30, 30, LAYOUT.n), 0), layout=LAYOUT)
    body = bytes(opened(encode(sent, Context(LAYOUT))))
    for _ in range(3000):
        broken = bytearray(body)
        for _ in range(rng.integers(1, 4)):
            broken[rng.integers(1, len(broken))] = rng.integers(256)
        try:
            got = decode(sealed(bytes(broken)), Context(LAYOUT))
        except WireError:
            continue
        assert (np.diff(got.positions) > 0).all()
        assert got.codes.all()
        assert np.isfinite(got.values).all()


# Sums

STEPS = [2.0**-6, 2.0**-5, 2.0**-4]


def on_grid(rng, n):
    return np.round(rng.normal(size=n) * 2**18).astype(np.float32) / np.float32(2**18)


def broadcasts(rng, layout, count):
    return [lattice(rng.integers(-2, 3, layout.n), rng.choice(STEPS), layout) for _ in range(count)]


def test_sums_are_exact_in_whatever_order():
    rng = np.random.default_rng(2)
    w, changes = on_grid(rng, LAYOUT.n), broadcasts(rng, LAYOUT, 50)
    one_by_one = w
    for change in changes:
        one_by_one = change.onto(one_by_one)
    assert np.array_equal(total(changes, LAYOUT).onto(w), one_by_one)
    assert np.array_equal(total([total(changes[:20], LAYOUT), *changes[20:]], LAYOUT).onto(w), one_by_one)
    back = one_by_one.copy()
    total(changes, LAYOUT).add_to(back, -1.0, back)
    assert np.array_equal(back, w)


def test_a_step_without_codes_says_nothing():
    """Such as a hostile client may send, however long."""
    some, none = lattice([0, 3, -1], 2.0**-10), lattice([0, 0, 0], 2.0**100)
    for increments in ([some, none], [none, some]):
        assert same(total(increments, some.layout), some)
    assert not len(total([none, none], some.layout).positions)


def test_a_client_that_missed_broadcasts_is_sent_their_sum_or_the_model():
    rng = np.random.default_rng(3)
    context = Context(LAYOUT)
    log, models = BroadcastLog(), [on_grid(rng, LAYOUT.n)]
    for change in broadcasts(rng, LAYOUT, 12):
        models.append(change.onto(models[-1]))
        log = log.append(encode(change, context), 4 * LAYOUT.n, absolute=False)
    catch_up = CatchUp(log, context, lambda: encode(Dense(models[-1]), context))
    for version in range(13):
        update = catch_up.update(version)
        if version == 12:
            assert (update.how, list(update.blobs)) == ("each", [])
            continue
        assert update.how in ("summed", "model")
        (blob,) = update.blobs
        assert np.array_equal(decode(blob, context).onto(models[version]), models[-1])
        assert update.how == "model" or len(blob) < sum(map(len, log.blobs[version:])) or version == 11
    assert catch_up.update(11).how == "summed"


def test_the_log_reaches_further_back_than_one_of_single_broadcasts():
    context, log = Context.flat(1000), BroadcastLog()
    blob = encode(lattice(np.arange(1000) % 3 - 1), context)
    for _ in range(100):
        log = log.append(blob, 4000, absolute=False)
    assert 4000 // len(blob) < len(log.blobs) == min(100, 8 * 4005 // len(blob))
    assert log.version == 100
