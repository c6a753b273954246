import pytest

from efl.errors import WireError
from efl.wire import BroadcastLog, Message


def test_a_message_survives_the_way():
    sent = Message("request", {"round": 3, "eta": 0.1}, {"field": b"abc"}, [b"x", b"yz"])
    got = Message.from_bytes(sent.to_bytes(), "request")
    assert (got.header, got.parts, list(got.log)) == (sent.header, sent.parts, list(sent.log))


def test_damage_is_noticed():
    blob = Message("reply", {"round": 3}, {"update": b"abc"}).to_bytes()
    for i in range(len(blob)):
        broken = bytearray(blob)
        broken[i] ^= 1
        with pytest.raises(WireError):
            Message.from_bytes(bytes(broken), "reply")
    for cut in range(len(blob)):
        with pytest.raises(WireError):
            Message.from_bytes(blob[:cut], "reply")


def test_a_message_of_another_kind_is_refused():
    with pytest.raises(WireError, match="expected a reply"):
        Message.from_bytes(Message("request", {}).to_bytes(), "reply")
    with pytest.raises(WireError, match="not a number"):
        Message("reply", {"steps": "many"}).number("steps")


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
