"""What a hostile payload may cost, on a vector long enough to tell: a small multiple of an honest one."""

import time
import tracemalloc
import zlib
from itertools import islice

import numpy as np
import pytest

from efl.errors import WireError
from efl.layout import Layout
from efl.wire import Context, Dense, Field, RankOneFisher, Ternary, decode, encode, received
from efl.wire.coordinate_order import ByField
from efl.wire.reader import sealed, varints

N = 10**7
MODEL = 4 * N  # bytes
FLAT, MATRIX = Layout.flat(N), Layout(((1000, 1000),))


def cost(read):
    """Seconds of processor time, and bytes."""
    began = time.process_time()
    read()
    seconds = time.process_time() - began
    tracemalloc.start()
    read()
    room = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds, room


def test_a_ternary_of_every_position_in_a_few_bytes():
    rows = zlib.compress(b"\x00")
    body = b"\x03\x0f\x03" + np.ones(1, "<f4").tobytes() + varints([N, 0, len(rows)]) + rows + varints([0] * 6)
    blob = sealed(body)
    assert len(blob) < 50
    assert len(decode(blob, Context(FLAT)).positions) == N
    seconds, room = cost(lambda: decode(blob, Context(FLAT)))
    assert room < 5 * MODEL
    assert seconds < 1


def field_of_zeros(zeros):
    squeezed = zlib.compress(bytes(zeros), 9)
    return sealed(b"\x05\x00\x0f" + varints([N, 0, 2**15, 2**15, len(squeezed)]) + squeezed)


def test_a_field_of_every_position_in_a_few_kilobytes():
    blob = field_of_zeros(2 * N)
    assert len(blob) < 20_000
    assert len(decode(blob, Context(FLAT)).fisher) == N
    seconds, room = cost(lambda: decode(blob, Context(FLAT)))
    assert room < 5 * MODEL
    assert seconds < 2


def test_compressed_codes_are_not_unpacked_beyond_what_is_expected():
    blob = field_of_zeros(10 * N)

    def refuse():
        with pytest.raises(WireError, match="compressed"):
            decode(blob, Context(FLAT))

    seconds, room = cost(refuse)
    assert room < 5 * MODEL
    assert seconds < 1


def test_an_honest_model_for_comparison():
    blob = encode(Dense(np.ones(N, np.float32)), Context(FLAT))
    assert cost(lambda: decode(blob, Context(FLAT)))[1] < 1.5 * MODEL


@pytest.fixture(scope="module")
def guessed():
    """Rows and columns that all differ: the most work for whoever sorts by them."""
    rng = np.random.default_rng(0)
    return RankOneFisher(MATRIX, rng.integers(-250, 0, 1000), rng.integers(-250, 0, 1000))


@pytest.mark.parametrize("every", [2, 3])
def test_payloads_sorted_by_a_field(every, guessed):
    at = np.arange(0, MATRIX.n, every)
    values = np.ones(len(at), np.float32)
    context = Context(MATRIX, guessed)
    for payload in (Ternary(MATRIX, at, at % 2 == 0, values[:1]), Field(MATRIX, at, values, values, guessed)):
        blob = encode(payload, context)
        seconds, room = cost(lambda blob=blob: decode(blob, Context(MATRIX, guessed)))
        assert room < 8 * 4 * MATRIX.n
        assert seconds < 0.5


def test_an_order_by_rows_and_columns_that_all_differ(guessed):
    seconds, room = cost(lambda: ByField(MATRIX, [(guessed.rows, guessed.columns)]).position(np.arange(10_000)))
    assert room < 4 * 4 * MATRIX.n
    assert seconds < 0.5


def apply(how, blobs, context):
    """As a client does: one change after the other; how many it comes to."""
    w = np.zeros(context.layout.n, np.float32)
    applied = 0
    try:
        for change in received(how, blobs, context):
            w = change.onto(w)
            applied += 1
    except WireError:
        return -applied
    return applied


def test_merged_broadcasts_that_stand_for_much():
    """Twelve megabytes of signs, and positions for free."""
    one = b"\x01" + np.ones(1, "<f4").tobytes() + varints([N, 0]) + bytes(N // 8)
    blob, context = sealed(varints([10, 0x0F, N, 0]) + 10 * one), Context(FLAT)
    assert len(blob) > 12_000_000
    assert apply("merged", [blob], context) == -8  # then it has been enough
    seconds, room = cost(lambda: [None for _ in islice(received("merged", [blob], context), 4)])
    assert room < 64 * 2**20 + 8 * MODEL
    assert seconds < 3


def test_many_broadcasts_that_stand_for_much():
    """A catch-up of a few hundred kilobytes that would change every parameter ten thousand times."""
    n = 200_000
    layout = Layout(((400, 500),))
    context = Context(layout)
    blob = encode(Ternary(layout, np.arange(n), np.ones(n, bool), np.ones(1, np.float32)), context)
    assert len(blob) < 80
    assert apply("each", [blob] * 300, context) == -8
    seconds, room = cost(lambda: apply("each", [blob] * 300, context))
    assert room < 10 * 4 * n
    assert seconds < 1
    with pytest.raises(WireError, match="too many"):
        received("each", [blob] * 313, context)
