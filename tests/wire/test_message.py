import math

import msgpack
import numpy as np
import pytest

from efl.errors import WireError
from efl.wire import BroadcastLog, Context, Dense, Message, decode, encode
from efl.wire.reader import sealed, varints


def test_a_message_survives_the_way():
    sent = Message("request", [3, 0.1], {"field": b"abc"}, [b"x", b"yz"])
    got = Message.from_bytes(sent.to_bytes(), "request")
    assert (got.header, got.parts, list(got.log)) == (sent.header, sent.parts, list(sent.log))


def test_damage_is_noticed():
    update = encode(Dense(np.float32([1, 2])), Context.flat(2))
    blob = Message("reply", [3], {"update": update}, [update]).to_bytes()
    for i in range(len(blob)):
        broken = bytearray(blob)
        broken[i] ^= 1
        with pytest.raises(WireError):
            read_through(bytes(broken))
    for cut in range(len(blob)):
        with pytest.raises(WireError):
            read_through(blob[:cut])
    with pytest.raises(WireError):
        read_through(blob + b"x")


def read_through(blob):
    message = Message.from_bytes(blob, "reply")
    return [decode(part, Context.flat(2)) for part in (*message.parts.values(), *message.log)]


def test_envelopes_that_lie_are_refused():
    for content in ([4, 1, [], {"a": -1}, []], [4, 1, [], {"a": 99}, []], [4, 1, [], 5, []], [3, 1, [], {"a": 2}, []],
                    [4, 1, [], {}, ["x"]], [4, 1, [], {"a": math.inf}, []], [4, 1, [], {"a": True, "b": 1}, []],
                    [4, 1, [], {}, [math.nan]], [4, 1, {}, {"a": 2}, []], [4, 1], "nothing"):  # fmt: skip
        envelope = msgpack.packb(content)
        with pytest.raises(WireError):
            Message.from_bytes(varints([len(envelope)]) + sealed(envelope) + b"12", "reply")


def test_a_message_of_another_kind_is_refused():
    with pytest.raises(WireError, match="expected a reply"):
        Message.from_bytes(Message("request", []).to_bytes(), "reply")
    for number in (-1, 7, True, "reply", None):
        envelope = msgpack.packb([4, number, [], {}, []])
        with pytest.raises(WireError, match="expected a reply"):
            Message.from_bytes(varints([len(envelope)]) + sealed(envelope), "reply")


def test_the_log_serves_whoever_it_reaches_back_to():
    log = BroadcastLog()
    for blob in (b"one", b"two", b"three"):
        log = log.append(blob, model_bytes=100, absolute=False)
    assert log.version == 3
    assert log.since(1) == (b"two", b"three")
    assert log.since(3) == ()
    assert log.since(4) is None


def test_the_log_is_never_longer_than_the_model():
    log = BroadcastLog()
    for _ in range(10):
        log = log.append(b"0123456789", model_bytes=35, absolute=False)
    assert (log.base, log.version, len(log.blobs)) == (7, 10, 3)
    assert log.since(6) is None
    assert log.since(8) == (b"0123456789",) * 2


def test_a_whole_model_in_the_log_makes_the_rest_needless():
    log = BroadcastLog().append(b"a", 10, absolute=False).append(b"model", 10, absolute=True)
    assert (log.base, log.version, log.blobs) == (1, 2, (b"model",))
