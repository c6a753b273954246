import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from efl.algorithms.compression.quantise import quantise
from efl.errors import WireError
from efl.wire import (
    Context,
    Dense,
    Field,
    Layout,
    OnSupport,
    Payload,
    Quantised,
    RankOneFisher,
    Signs,
    Ternary,
    decode,
    encode,
    received,
    register,
)
from efl.wire.merged import pack_merged, unpack_merged
from efl.wire.payloads import registry
from efl.wire.positions import pack_places, unpack_places
from efl.wire.reader import CHECKSUM, Reader, sealed
from efl.wire.sign_coding import pack_signs, unpack_signs

CNN = Layout(((16, 1, 3, 3), (16,), (32, 16, 3, 3), (32,), (64, 800), (64,), (10, 64), (10,)))


@pytest.fixture(params=["one class", "classes"], autouse=True, scope="module")
def _classes(request):
    """Everything twice: as small models are coded, and with classes however few the non-zeros."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "classes":
            patch.setattr("efl.wire.context.WORTH_SORTING", 0)
        yield request.param


def read_merged(blob, context):
    count, increments = unpack_merged(blob, context)
    increments = list(increments)
    assert len(increments) == count
    return increments


@st.composite
def layouts(draw):
    shape = st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple)
    return Layout(tuple(draw(st.lists(shape, min_size=1, max_size=5))))


def skewed(layout, seed):
    """Non-negative numbers with the rows and columns of a real Fisher diagonal: some large, some zero."""
    rng = np.random.default_rng(seed)
    pieces = []
    for block in layout.blocks:
        rows, columns = np.exp(2 * rng.normal(size=(block.rows, 1))), np.exp(2 * rng.normal(size=(1, block.columns)))
        rows[rng.random(rows.shape) < 0.1] = 0
        pieces.append((rows * columns * np.exp(rng.normal(size=(block.rows, block.columns)))).reshape(-1))
    return np.concatenate(pieces).astype(np.float32)


def some_positions(n, share, seed):
    rng = np.random.default_rng(seed)
    return np.sort(rng.choice(n, int(n * share), replace=False))


def random_ternary(layout, share, seed, scales=1):
    rng = np.random.default_rng(seed)
    positions = some_positions(layout.n, share, seed)
    return Ternary(layout, positions, rng.random(len(positions)) < 0.5, rng.random(scales).astype(np.float32))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_places_survive_the_way(data):
    sizes = data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=6))
    bounds = np.cumsum([0, *sizes])
    places = np.array(sorted(data.draw(st.sets(st.integers(0, max(int(bounds[-1]) - 1, 0))))), dtype=np.int64)
    places = places[places < bounds[-1]]
    reader = Reader(pack_places(places, bounds))
    assert np.array_equal(unpack_places(reader, bounds), places)
    reader.end()


@settings(max_examples=100, deadline=None)
@given(layout=layouts(), seed=st.integers(0, 999))
def test_a_coordinate_order_is_a_bijection_and_keeps_to_its_classes(layout, seed):
    field = RankOneFisher.of(skewed(layout, seed), layout)
    order = field.order
    everything = np.arange(layout.n)
    places = order.place(everything)
    assert np.array_equal(np.sort(places), everything)
    assert np.array_equal(order.position(everything)[places], everything)
    classes = np.searchsorted(order.bounds, places, side="right") - 1
    for block in layout.blocks:
        inside = slice(block.start, block.stop)
        rows, columns = np.divmod(np.arange(block.stop - block.start), block.columns)
        first_row, first_column = (
            sum(getattr(b, s) for b in layout.blocks if b.start < block.start) for s in ("rows", "columns")
        )
        steps = field.rows[first_row + rows] + field.columns[first_column + columns]
        octaves = np.minimum((steps.max() - steps) // 8, 23)
        assert np.array_equal(np.unique(octaves, return_inverse=True)[1], classes[inside] - classes[inside].min())
    sizes = np.diff(order.bounds)
    assert (sizes > 0).all()


@settings(max_examples=100, deadline=None)
@given(layout=layouts(), share=st.floats(0, 1), seed=st.integers(0, 99), each=st.booleans(), field=st.booleans())
def test_ternary_survives_the_way(layout, share, seed, each, field):
    context = Context(layout, RankOneFisher.of(skewed(layout, seed), layout) if field else None)
    sent = random_ternary(layout, share, seed, len(layout.blocks) if each else 1)
    got = decode(encode(sent, context), context)
    assert np.array_equal(got.positions, sent.positions)
    assert np.array_equal(got.values, sent.values)
    reference = np.random.default_rng(seed).normal(size=layout.n).astype(np.float32)
    expected = reference.copy()
    expected[sent.positions] += sent.values
    assert np.array_equal(got.onto(reference), expected)


def likely(field, count, seed):
    """Non-zeros where a field is large, as those of real updates are."""
    rng = np.random.default_rng(seed)
    return np.sort(np.argsort(-field * np.exp(rng.normal(size=len(field))))[:count])


def test_updates_are_coded_by_the_field_where_that_is_shorter():
    fisher = skewed(CNN, 0)
    plain, by_field = Context(CNN), Context(CNN, RankOneFisher.of(fisher, CNN))
    positions = likely(fisher, CNN.n // 20, 1)
    sent = Ternary(CNN, positions, np.arange(len(positions)) % 2 == 0, np.float32([0.5]))
    short, long = encode(sent, by_field), encode(sent, plain)
    assert len(short) < 0.8 * len(long)
    got = decode(short, by_field)
    assert np.array_equal(got.positions, positions)
    assert np.array_equal(got.positive, sent.positive)
    with pytest.raises(WireError, match="a field that this side does not have"):
        decode(short, plain)
    anywhere = random_ternary(CNN, 0.05, 2)  # the field says nothing about these: it must not cost anything
    assert len(encode(anywhere, by_field)) <= len(encode(anywhere, plain)) + 1


def test_signs_that_agree_within_rows_are_shorter():
    layout = Layout(((60, 100), (40,)))
    rng = np.random.default_rng(0)
    positions = some_positions(layout.n, 0.5, 0)
    usual = np.append(rng.random(60) < 0.5, False)[np.minimum(positions // 100, 60)]
    alike = Ternary(layout, positions, usual ^ (rng.random(len(positions)) < 0.05), np.float32([1]))
    mixed = Ternary(layout, positions, rng.random(len(positions)) < 0.5, np.float32([1]))
    context = Context(layout)
    saved = 8 * (len(encode(mixed, context)) - len(encode(alike, context))) / len(positions)
    assert 0.5 < saved < 1 - 0.28  # bits a sign; H(0.05) = 0.286
    for sent in (alike, mixed):
        assert np.array_equal(decode(encode(sent, context), context).positive, sent.positive)


@settings(max_examples=100, deadline=None)
@given(layout=layouts(), share=st.floats(0, 1), seed=st.integers(0, 99), bias=st.floats(0, 1))
def test_signs_survive_the_way(layout, share, seed, bias):
    positions = some_positions(layout.n, share, seed)
    positive = np.random.default_rng(seed).random(len(positions)) < bias
    by_row, blob = pack_signs(positive, positions, layout)
    reader = Reader(blob)
    assert np.array_equal(unpack_signs(reader, by_row, positions, layout), positive)
    reader.end()
    assert len(blob) <= -(-len(positions) // 8)


def test_dense_survives_the_way_and_replaces():
    values = np.random.default_rng(0).normal(size=100).astype(np.float32)
    got = decode(encode(Dense(values), Context.flat(100)), Context.flat(100))
    assert np.array_equal(got.onto(np.zeros(100, np.float32)), values)


def test_half_precision_is_rounded_once_and_half_as_long():
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    context = Context.flat(1000)
    blob = encode(Dense(values, half=True), context)
    assert len(blob) == 2005
    got = decode(blob, context)
    assert np.allclose(got.values, values, rtol=2**-8)
    assert encode(got, context) == blob


@settings(max_examples=50, deadline=None)
@given(layout=layouts(), seed=st.integers(0, 99))
def test_signs_and_quantised_values_survive_the_way(layout, seed):
    rng, context = np.random.default_rng(seed), Context(layout)
    values = (rng.normal(size=layout.n) * np.exp(5 * rng.normal())).astype(np.float32)
    sent = Signs(values > 0, 0.25)
    blob = encode(sent, context)
    assert len(blob) == 9 + -(-layout.n // 8)  # kind, scale, checksum
    assert np.array_equal(decode(blob, context).values, np.where(values > 0, 0.25, -0.25))
    (rounded,) = quantise(torch.from_numpy(values)[None], layout)
    blob = encode(rounded, context)
    assert len(blob) == 5 + 4 * len(layout.blocks) + layout.n
    got = decode(blob, context)
    assert np.array_equal(got.values, rounded.values)
    assert np.array_equal(got.onto(values), values + rounded.values)
    for start, stop in layout.segments:
        piece = values[start:stop]
        assert np.abs(got.values[start:stop] - piece).max(initial=0) <= 0.501 * np.abs(piece).max(initial=0) / 127


WIDE = Layout(((2,), (12,), (1, 2, 8), (7, 11, 2)))  # with seed 85, values over eleven orders of magnitude


@settings(max_examples=50, deadline=None)
@given(layout=layouts(), seed=st.integers(0, 99), factored=st.booleans(), shared=st.booleans(), share=st.floats(0, 1))
@example(layout=WIDE, seed=85, factored=False, shared=False, share=1.0)
def test_a_short_field_is_rounded_on_the_way_once(layout, seed, factored, shared, share):
    rng = np.random.default_rng(seed)
    fisher, index = skewed(layout, seed), some_positions(layout.n, share, seed)
    index = index[fisher[index] > 0]
    context = Context(layout, RankOneFisher.of(skewed(layout, seed + 1), layout) if shared else None)
    guessed = RankOneFisher.of(fisher, layout) if factored else None
    moved = rng.normal(size=len(index)).astype(np.float32)
    sent = Field(layout, index, fisher[index], moved, guessed)
    got = decode(encode(sent, context), context)
    assert np.array_equal(got.index, index)
    guess = guessed.dense()[index] if factored else np.ones(len(index))
    smallest = guess * (sent.fisher / guess).max(initial=0) * 2 ** (-255 / 8)
    assert np.allclose(got.fisher, np.maximum(sent.fisher, smallest), rtol=0.05)
    assert np.allclose(got.displacement, moved, rtol=0.15)
    if factored:
        assert np.array_equal(got.factored_fisher.rows, guessed.rows)
        assert np.array_equal(got.factored_fisher.columns, guessed.columns)
        assert np.array_equal(got.factored_fisher.dense(), guessed.dense())
    again = decode(encode(got, context), context)
    assert np.array_equal(again.fisher, got.fisher)
    assert np.array_equal(again.displacement, got.displacement)


def test_a_factored_fisher_is_exact_but_for_rounding_where_a_field_is_rank_one():
    layout = Layout(((6, 4), (5,)))
    rows, columns = np.array([1, 2, 4, 8, 0, 1]), np.array([3, 1, 0.5, 0])
    values = np.concatenate([np.outer(rows, columns).reshape(-1), [1, 2, 3, 0, 5]]).astype(np.float32)
    guess = RankOneFisher.of(values, layout).dense()
    assert np.allclose(guess, values, rtol=0.1)
    assert (guess[values == 0] == 0).all()


def test_a_full_field_is_exact():
    rng = np.random.default_rng(0)
    field = Field(Layout.flat(40), None, rng.random(40).astype(np.float32), rng.normal(size=40).astype(np.float32))
    got = decode(encode(field, Context.flat(40)), Context.flat(40))
    assert got.index is None
    assert np.array_equal(got.fisher, field.fisher)
    assert np.array_equal(got.displacement, field.displacement)


def test_uniform_positions_cost_little_more_than_their_entropy():
    n, k = 10_000_000, 100_000
    q = k / n
    limit = (-(q * np.log2(q) + (1 - q) * np.log2(1 - q)) / q + 1) * k / 8
    assert len(encode(random_ternary(Layout.flat(n), q, 0), Context.flat(n))) < 1.005 * limit


@settings(max_examples=50, deadline=None)
@given(layout=layouts(), seed=st.integers(0, 99), count=st.integers(1, 5), share=st.floats(0, 0.6))
def test_merged_increments_are_recovered_one_by_one(layout, seed, count, share):
    context = Context(layout, RankOneFisher.of(skewed(layout, seed), layout))
    sent = [random_ternary(layout, share, seed + i, 1 if i % 2 else len(layout.blocks)) for i in range(count)]
    got = read_merged(pack_merged(sent, context), context)
    assert len(got) == count
    for one, other in zip(sent, got, strict=True):
        assert np.array_equal(one.positions, other.positions)
        assert np.array_equal(one.values, other.values)


def test_increments_that_overlap_are_shorter_merged():
    fisher = skewed(CNN, 0)
    context = Context(CNN)
    many = [
        Ternary(CNN, at, np.ones(len(at), bool), np.float32([1])) for at in (likely(fisher, 2000, s) for s in range(8))
    ]
    assert len(pack_merged(many, context)) < 0.95 * sum(len(encode(one, context)) for one in many)


# Adding up


@settings(max_examples=100, deadline=None)
@given(layout=layouts(), seed=st.integers(0, 99), weight=st.floats(-3, 3, width=32), share=st.floats(0, 1))
def test_adding_up_is_the_arithmetic_of_the_first_edition(layout, seed, weight, share):
    """Bit for bit, PyTorch's index_add_ and add_, whatever the processor makes of them."""
    rng = np.random.default_rng(seed)
    w, total, values = rng.normal(size=(3, layout.n)).astype(np.float32)
    ternary = random_ternary(layout, share, seed, len(layout.blocks))
    for payload in (
        ternary,
        Dense(values),
        Signs(values > 0, 0.3),
        quantise(torch.from_numpy(values)[None], layout)[0],
    ):
        expected = torch.from_numpy(total.copy())
        if payload is ternary:
            expected.index_add_(0, torch.from_numpy(ternary.positions), torch.from_numpy(ternary.values) * weight)
        elif isinstance(payload, Dense):
            expected.add_(torch.from_numpy(values) - torch.from_numpy(w), alpha=weight)
        else:
            expected.add_(torch.from_numpy(payload.values), alpha=weight)
        summed = total.copy()
        payload.add_to(summed, weight, w)
        assert np.array_equal(summed, expected.numpy())
    with pytest.raises(TypeError, match="Field is no update"):
        Field(layout, None, values, values).add_to(total, weight, w)


def test_a_new_kind_of_payload_is_a_class_with_a_decorator(monkeypatch):
    monkeypatch.setattr("efl.wire.payloads.registry._KINDS", dict(registry._KINDS))

    @register(100)
    class Constant(Payload):
        def __init__(self, value):
            self.value = value

        def pack(self, context):
            return bytes([100]) + np.array([self.value], "<f4").tobytes()

        @classmethod
        def unpack(cls, kind, reader, context):
            return cls(float(reader.floats(1)[0]))

        @classmethod
        def most_bytes(cls, layout):
            return 5

        def onto(self, reference):
            return reference + np.float32(self.value)

    context = Context.flat(3)
    blob = encode(Constant(0.5), context)
    assert decode(blob, context).onto(np.zeros(3, np.float32)).tolist() == [0.5] * 3
    (change,) = received("each", [blob], context)
    assert isinstance(change, Constant)
    with pytest.raises(WireError, match="at most 5"):
        decode(sealed(bytes([100]) * 6), context)
    with pytest.raises(ValueError, match="taken"):
        register(3)


# Bytes that are not what they should be

FIELD = RankOneFisher.of(skewed(CNN, 0), CNN)
CONTEXTS = [Context(CNN), Context(CNN, FIELD)]


def samples():
    fisher = skewed(CNN, 0)
    at = likely(fisher, 900, 3)
    payloads = [
        Dense(fisher),
        Dense(fisher, half=True),
        random_ternary(CNN, 0.01, 0),
        random_ternary(CNN, 0.05, 1, len(CNN.blocks)),
        Ternary(CNN, at, at % 2 == 0, np.float32([0.1])),
        Field(CNN, None, fisher, fisher),
        Field(CNN, at, fisher[at], fisher[at] - 1, FIELD),
        Field(CNN, at[:50], fisher[at[:50]], fisher[at[:50]] - 1),
        Signs(fisher > 1, 0.5),
        quantise(torch.from_numpy(fisher)[None], CNN)[0],
        OnSupport(CNN.n, 3, fisher[:100]),
    ]
    for context in CONTEXTS:
        for payload in payloads:
            yield context, decode, encode(payload, context)
        yield context, read_merged, pack_merged(payloads[2:5], context)


SAMPLES = list(samples())


@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_damaged_payloads_are_refused_or_valid(data):
    context, read, blob = SAMPLES[data.draw(st.integers(0, len(SAMPLES) - 1))]
    blob = bytearray(blob[:-CHECKSUM])
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "early"]))
        # the first bytes are where lengths and counts are
        where = data.draw(st.integers(0, max(0, min(60, len(blob) - 1) if kind == "early" else len(blob) - 1)))
        if kind == "cut":
            del blob[where:]
        elif kind == "insert":
            blob[where:where] = data.draw(st.binary(min_size=1, max_size=9))
        elif blob:
            blob[where] = data.draw(st.integers(0, 255))
        if not blob:
            break
    check_refused_or_valid(sealed(bytes(blob)), context, read)


def check_refused_or_valid(blob, context, read):
    try:
        result = read(blob, context)
    except WireError:
        return
    for payload in result if isinstance(result, list) else [result]:
        if isinstance(payload, Dense | Signs | Quantised):
            assert len(payload.values) == context.layout.n
            assert np.isfinite(payload.values).all()
        else:
            at = payload.index if isinstance(payload, Field) else payload.positions
            values = payload.fisher if isinstance(payload, Field) else payload.values
            assert np.isfinite(values).all()
            if at is not None:
                assert len(at) == 0 or (at[0] >= 0 and at[-1] < context.layout.n and (np.diff(at) > 0).all())


@settings(max_examples=300, deadline=None)
@given(blob=st.binary(max_size=200), which=st.integers(0, 1))
def test_random_bytes_are_refused_or_valid(blob, which):
    check_refused_or_valid(sealed(blob), CONTEXTS[which], decode)
    check_refused_or_valid(sealed(blob), CONTEXTS[which], read_merged)
