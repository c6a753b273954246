"""Typed messages: they survive the way, they are the bytes of version 3, and whatever else comes is refused cheaply."""

import dataclasses
import math
import time
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efl.errors import WireError
from efl.wire import (
    EvaluateReply,
    EvaluateRequest,
    Layout,
    Limits,
    Message,
    RestoreStateRequest,
    SaveStateRequest,
    StateReply,
    TrainReply,
    TrainRequest,
    decode_request,
)
from efl.wire.limits import MOST_PARTS
from efl.wire.message import VERSION
from efl.wire.reader import Reader, sealed, varints

LIMITS = Limits.of(Layout(((20, 30), (20,))), buffers=7)
counts, blobs = st.integers(0, 2**31 - 1), st.binary(max_size=30)
finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text("abcdefgh_-é", min_size=1, max_size=64).filter(lambda name: name not in ("buffers", "personal"))
parts = st.dictionaries(names, blobs, max_size=MOST_PARTS - 2)
shared = st.builds(lambda some, buffers: some | buffers, parts, st.dictionaries(st.just("buffers"), blobs))
rounds = {"eta": st.floats(0, 1e6), "local_steps": st.integers(1, 2**31 - 1), "batch_size": st.integers(1, 2**31 - 1)}
rounds |= {"clients": counts}


@st.composite
def train_requests(draw):
    how = draw(st.sampled_from(["each", "merged", "model", "summed"]))
    base = -2 if how == "model" else draw(st.integers(-2, 10**6))
    log = draw(st.lists(blobs, max_size=20) if how == "each" else st.lists(blobs, min_size=1, max_size=1))
    version = max(0, base) + draw(st.integers(0, 9)) if how != "each" else base + len(log)
    if version < 0:
        base, version = base + 2, version + 2
    built = st.builds(TrainRequest, round=counts, client=counts, **rounds, coarseness=st.integers(-63, 63),
                      accepted=st.integers(-1, 2**31 - 1),
                      how=st.just(how), base=st.just(base), version=st.just(version), shared=shared, log=st.just(log),
                      start=st.none() | st.integers(0, 2**32 - 1), personal=st.none() | blobs)  # fmt: skip
    return draw(built)


train_replies = st.one_of(
    st.builds(TrainReply, counts, counts, counts, finite, parts, recovered=st.booleans()),
    st.builds(TrainReply, counts, counts, counts, st.floats(allow_nan=False), diverged=st.just(True)),
    st.builds(TrainReply, counts, counts, needs_model=st.just(True)),
)
evaluate_requests = st.one_of(
    st.builds(EvaluateRequest, counts, counts, blobs, st.dictionaries(st.just("buffers"), blobs)),
    st.builds(EvaluateRequest, counts, counts, blobs, shared, st.none() | blobs, st.just(True), **rounds),
)
metrics = st.dictionaries(names, st.tuples(finite, st.floats(0, 1e300)), max_size=20)
messages = st.one_of(
    train_requests(),
    train_replies,
    evaluate_requests,
    st.builds(EvaluateReply, counts, counts, metrics),
    st.builds(SaveStateRequest, counts),
    st.builds(RestoreStateRequest, counts),
    st.builds(StateReply, counts, st.none() | st.text("abc %_é", max_size=200).map(lambda s: " ".join(s.split()))),
)


@settings(max_examples=400, deadline=None)
@given(message=messages)
def test_every_type_survives_the_way(message):
    blob = message.to_bytes()
    assert type(message).from_bytes(blob, LIMITS) == message
    assert type(message).from_bytes(blob, LIMITS).to_bytes() == blob
    if type(message).__name__.endswith("Request"):
        assert decode_request(blob, LIMITS) == message
    else:
        with pytest.raises(WireError, match="expected"):
            decode_request(blob, LIMITS)


def test_train_messages_are_the_bytes_of_version_4():
    """As docs/wire.md has them: values in their order, nothing for a start that need not be checked."""
    first = [1, 3, 7, 0.1, 20, 32, 50, -2, -1, 0, 0]
    request = TrainRequest(3, 7, 0.1, 20, 32, 50, -2, -1, "each", 0, 1, 99, {"field": b"f"}, b"p", [b"one"])
    parts = {"field": b"f", "personal": b"p"}
    assert request.to_bytes() == Message("request", [*first, 99], parts, [b"one"]).to_bytes()
    known = dataclasses.replace(request, start=None, personal=None, shared={})
    assert known.to_bytes() == Message("request", first, {}, [b"one"]).to_bytes()
    for reply, header, sent in (
        (TrainReply(3, 7, 5, 0.5, {"update": b"u"}), [3, 7, 0, 5, 0.5], {"update": b"u"}),
        (TrainReply(3, 7, 5, 0.5, {"update": b"u"}, recovered=True), [3, 7, 1, 5, 0.5], {"update": b"u"}),
        (TrainReply(3, 7, 5, 0.5, diverged=True), [3, 7, 2, 5, 0.5], {}),
        (TrainReply(3, 7, needs_model=True), [3, 7, 3], {}),
    ):
        assert reply.to_bytes() == Message("reply", header, sent).to_bytes()


# Messages that are none

DONE = {"round": 3, "client": 7, "outcome": 0, "steps": 5, "loss": 0.5}
ASKED = {"version": 1, "round": 3, "client": 7, "eta": 0.1, "local_steps": 20, "batch_size": 32, "clients": 50}
ASKED |= {"coarseness": 0, "accepted": -1, "how": 0, "base": 0}


def refused(kind, header, parts=None, log=()):
    with pytest.raises(WireError) as caught:
        kind.from_bytes(Message(kind.KIND, [*header.values()], parts or {}, log).to_bytes(), LIMITS)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("key", ["round", "client", "outcome", "steps", "loss"])
@pytest.mark.parametrize("value", [None, True, "5", [5], {"x": 5}, math.nan, math.inf, -math.inf, b"5"])
def test_header_entries_of_a_reply_are_checked(key, value):
    TrainReply.from_bytes(Message("reply", [*DONE.values()]).to_bytes(), LIMITS)
    refused(TrainReply, {**DONE, key: value})
    refused(TrainReply, {k: v for k, v in DONE.items() if k != key})


@pytest.mark.parametrize(
    "change",
    [{"round": -1}, {"client": 2**31}, {"steps": 0.5}, {"steps": 2**40}, {"more": 1}, {"outcome": -1}, {"outcome": 4},
     {"outcome": "update"}, {"outcome": 3}],
)  # fmt: skip
def test_impossible_headers_of_a_reply(change):
    refused(TrainReply, {**DONE, **change})


@pytest.mark.parametrize(
    "change",
    [{"eta": -0.1}, {"clients": -1}, {"coarseness": 64},
     {"local_steps": 0}, {"batch_size": 0}, {"accepted": -2}, {"how": 4}, {"how": -1},
     {"how": "each"}, {"how": [0]}, {"base": -3}, {"base": 2}, {"version": 2}, {"version": -1},
     {"start": 2**32}, {"start": None}, {"eta": True}],
)  # fmt: skip
def test_impossible_headers_of_a_request(change):
    TrainRequest.from_bytes(Message("request", [*ASKED.values()], {}, [b"one"]).to_bytes(), LIMITS)
    refused(TrainRequest, {**ASKED, **change}, log=[b"one"])


@pytest.mark.parametrize(
    "metrics",
    [None, [], {"": [1, 2]}, {"x" * 65: [1, 2]}, {"a\nb": [1, 2]}, {"a": [1]}, {"a": [1, -1]}, {"a": [math.nan, 1]},
     {"a": [1, math.inf]}, {"a": [True, 1]}, {"a": {"b": 1}}, {str(i): [1, 1] for i in range(65)}],
)  # fmt: skip
def test_metrics_that_are_none(metrics):
    refused(EvaluateReply, {"round": 0, "client": 0, "metrics": metrics})


def test_parts_that_do_not_belong_there():
    with pytest.raises(WireError, match="unexpected part"):
        TrainReply.from_bytes(
            TrainReply(0, 0, 1, 0.0, {"x": b""}).to_bytes(), Limits.of(Layout.flat(3), names=["update"])
        )
    for header in ({**DONE, "outcome": 2}, {"round": 3, "client": 7, "outcome": 3}):
        assert "without an update" in refused(TrainReply, header, {"update": b"x"})
    refused(TrainReply, DONE, log=[b"x"])
    refused(SaveStateRequest, {"round": 3}, {"update": b"x"})
    refused(EvaluateRequest, {"round": 3, "client": 7, "personalised": False})
    refused(EvaluateRequest, {"round": 3, "client": 7}, log=[b"model"])
    refused(EvaluateRequest, {"round": 3, "client": 7, "personalised": 0}, log=[b"model"])
    refused(EvaluateRequest, {"round": 3, "client": 7, "personalised": False}, {"field": b"f"}, [b"model"])
    refused(EvaluateRequest, {"round": 3, "client": 7, "personalised": False}, {"personal": b"f"}, [b"model"])
    refused(TrainReply, DONE, {f"part {i}": b"" for i in range(MOST_PARTS + 1)})
    refused(StateReply, {"round": 3, "error": "two\nlines"})
    refused(StateReply, {"round": 3, "error": "x" * 201})


def test_payloads_longer_than_any_honest_one_are_refused():
    n = 620
    for name, size in (("update", 8 * n + 1000), ("buffers", 4 * 7 + 6)):
        assert "at most" in refused(TrainReply, DONE, {name: bytes(size)})
    refused(TrainRequest, ASKED, log=[bytes(4 * n + 6)])
    TrainRequest.from_bytes(
        Message("request", [*ASKED.values()], {"buffers": bytes(33)}, [bytes(4 * n + 5)]).to_bytes(), LIMITS
    )


def enveloped(content, tail=b""):
    envelope = content if isinstance(content, bytes) else msgpack.packb(content)
    return varints([len(envelope)]) + sealed(envelope) + tail


def test_two_parts_of_one_name_are_refused():
    twice = msgpack.packb([VERSION, 1, [*DONE.values()]])[1:] + b"\x82\xa1a\x01\xa1a\x01" + b"\x90"
    with pytest.raises(WireError, match="as long as declared"):
        TrainReply.from_bytes(enveloped(b"\x95" + twice, b"xy"), LIMITS)


def read_anyhow(blob):
    """Both ways a message is read; the refusals."""
    with pytest.raises(WireError) as reply:
        TrainReply.from_bytes(blob, LIMITS)
    with pytest.raises(WireError) as request:
        decode_request(blob, LIMITS)
    return str(reply.value), str(request.value)


@pytest.mark.parametrize("depth", [5, 500, 1000, 5000, 100_000])
@pytest.mark.parametrize("brace", [b"\x91", b"\x81\xa1a"])
def test_deep_nesting_is_refused_without_recursion(depth, brace):
    deep = brace * depth + b"\x01"
    for content in (
        deep,
        b"\x95" + deep + b"\x01\x90\x80\x90",
        b"\x95\x04" + deep + b"\x90\x80\x90",
        b"\x95\x04\x01" + deep + b"\x80\x90",
        b"\x95\x04\x01\x91" + deep + b"\x80\x90",
        b"\x95\x04\x01\x90" + deep + b"\x90",
        b"\x95\x04\x01\x90\x81\xa1a" + deep + b"\x90",
        b"\x95\x04\x01\x90\x80" + deep,
        b"\x95\x04\x00\x90\x80\x91" + deep,
    ):
        read_anyhow(enveloped(content))


def cost(read):
    """Seconds, without passing disturbances, and bytes."""
    seconds = math.inf
    for _ in range(3):
        began = time.perf_counter()
        read()
        seconds = min(seconds, time.perf_counter() - began)
    tracemalloc.start()
    read()
    room = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds, room


@pytest.mark.parametrize(
    "content",
    [
        [VERSION, 1, [*range(600_000)], {}, []],
        [VERSION, 1, [{str(i): i for i in range(600_000)}], {}, []],
        [VERSION, 1, ["x" * 8_000_000], {}, []],
        [VERSION, 1, [[0] * 8_000_000], {}, []],
        [VERSION, 1, [[[]] * 8_000_000], {}, []],
        [VERSION, 1, [], {str(i): 0 for i in range(600_000)}, []],
        [VERSION, 1, [], {}, [0] * 8_000_000],
        [VERSION, 0, [], {}, [0] * 8_000_000],
        [VERSION, 0, [*ASKED.values()], {}, [0] * 90_000],
        [VERSION, 0, [*ASKED.values()], {}, [[]] * 10_000],
        [VERSION, 0, [[{}] * 9_000], {}, []],
    ],
    ids=range(11),
)
def test_huge_headers_cost_little(content):
    blob = enveloped(content)
    seconds, room = cost(lambda: read_anyhow(blob))
    assert room < 2_000_000
    assert seconds < 0.05


def test_lengths_that_are_declared_but_not_there_cost_nothing():
    declared = [({0: size}, []) for size in (5000, 2**62, True)] + [({}, [size]) for size in (2**63, True)]
    for parts, log in declared:
        for kind, header in ((1, DONE), (0, ASKED)):
            blob = enveloped([VERSION, kind, [*header.values()], parts, log], b"xy")
            assert cost(lambda blob=blob: read_anyhow(blob))[1] < 200_000
    starts = [enveloped(bytes([code]) + b"\xff\xff\xff\xff\x01") for code in (0xDD, 0xDF, 0xDB, 0xC6, 0xC9)]
    for blob in (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f" + bytes(100), *starts):
        assert cost(lambda blob=blob: read_anyhow(blob))[1] < 200_000


@settings(max_examples=300, deadline=None)
@given(blob=st.binary(max_size=300))
def test_random_envelopes_are_refused(blob):
    read_anyhow(blob)
    read_anyhow(enveloped(blob))


@settings(max_examples=500, deadline=None)
@given(message=messages, data=st.data())
def test_a_damaged_message_is_refused_or_as_good_as_any(message, data):
    """The envelope is sealed anew after the damage, as a forger would."""
    blob = message.to_bytes()
    reader = Reader(blob)
    (length,) = reader.varints(1)
    envelope = bytearray(reader.bytes(length))
    for _ in range(data.draw(st.integers(1, 3))):
        envelope[data.draw(st.integers(0, length - 1))] = data.draw(st.integers(0, 255))
    try:
        got = type(message).from_bytes(enveloped(bytes(envelope), blob[reader.at + 4 :]), LIMITS)
    except WireError:
        return
    assert type(message).from_bytes(got.to_bytes(), LIMITS).to_bytes() == got.to_bytes()


def test_usual_parts_travel_as_numbers_and_no_other_way():
    message = Message("reply", [3], {"update": b"x", "control": b"yz"})
    blob = message.to_bytes()
    assert Message.from_bytes(blob, "reply").parts == message.parts
    assert b"update" not in blob
    for name in ("update", "field", "buffers"):
        with pytest.raises(WireError, match="by its name instead of its number"):
            Message.from_bytes(enveloped([VERSION, 1, [], {name: 1}, []], b"x"), "reply")
    for number in (3, -1, True, None, 0.0):
        with pytest.raises(WireError):
            Message.from_bytes(enveloped([VERSION, 1, [], {number: 1}, []], b"x"), "reply")
