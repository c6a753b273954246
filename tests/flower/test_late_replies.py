"""Asynchronous rounds on a network: what comes after a round's end is used in the next."""

import pytest
from grids import FakeGrid, served

from efl import UserError

SETTINGS = {"training.buffer": 3, "training.rounds": 4}


def run_with_a_slow_client(tmp_path, comes, **config):
    """Client 3's reply to the first request comes when ``comes(requests so far)`` says so."""
    run, grid, lines = served(tmp_path, {**SETTINGS, **config})
    kept, asked = [], []

    def slow(node, message, reply):
        if message.metadata.message_type != "train":
            return reply
        asked.append((node.info.node_id - 100, message.metadata.message_id))
        if node.info.node_id == 103 and not kept:
            kept.append(reply)
            return None
        if kept and comes(len(asked)):
            grid.replies.setdefault(kept[0].metadata.reply_to_message_id, kept[0])
        return reply

    grid.spoil = slow
    return run.execute(), asked, lines, grid


@pytest.mark.parametrize("algorithm", ["efl", "fedavg"])
def test_a_late_reply_is_used_in_the_next_round_and_its_client_is_left_alone_until_then(tmp_path, algorithm):
    result, asked, lines, _ = run_with_a_slow_client(tmp_path, lambda n: n == 5, **{"algorithm.name": algorithm})
    first, second, third, _ = result.history
    assert (first["aggregated"], first["staleness"]) == ([0, 1, 2], 0)
    assert 3 in second["aggregated"]
    assert second["staleness"] == pytest.approx(1 / len(second["aggregated"]), abs=1e-3)
    assert [client for client, _ in asked[:7]] == [0, 1, 2, 3, 0, 1, 2]
    assert "3" in third["clients"]
    assert not any("discarded" in line or "rejected" in line for line in lines)
    assert all(record["bytes"]["up"].get("lost", 0) == 0 for record in result.history)


def test_who_never_replies_is_at_work_until_two_deadlines_have_passed(tmp_path):
    config = {"training.buffer": 4, "training.rounds": 5}
    result, asked, _, grid = run_with_a_slow_client(tmp_path, lambda n: False, **config)
    assert [sorted(record["clients"]) for record in result.history[1:4]] == [list("012"), list("0123"), list("0123")]
    assert [record["dropped"] for record in result.history] == [0, 0, 1, 0, 0]
    assert [client for client, _ in asked].count(3) == 3
    assert 10.0 <= grid.now < 20.0  # two rounds lasted a deadline


def test_without_anything_late_it_is_the_synchronous_run(tmp_path):
    waiting, _, _ = served(tmp_path / "a", {"training.rounds": 4})
    buffered, _, _ = served(tmp_path / "b", {"training.rounds": 4, "training.buffer": 4})
    one, other = waiting.execute().summary, buffered.execute().summary
    for key in ("model_sha256", "bytes_up", "bytes_down"):
        assert one[key] == other[key]


def test_a_server_that_was_stopped_waits_no_longer_for_those_at_work(tmp_path):
    class StopError(Exception):
        pass

    def stopping(record):
        if record["round"] == 0:
            raise StopError

    run, grid, _ = served(tmp_path, SETTINGS)
    grid.spoil = lambda node, message, reply: (
        None if message.metadata.message_type == "train" and node.info.node_id == 103 else reply
    )
    run.observers = [_Observer(stopping)]
    with pytest.raises(StopError):
        run.execute()
    again, _, _ = served(tmp_path, SETTINGS, grid=FakeGrid(grid.config, tmp_path))
    result = again.execute()
    assert result.history[1]["clients"]["3"] == 0
    assert "3" in result.history[2]["clients"]
    assert result.summary["rounds"] == 4


class _Observer:
    def __init__(self, round_):
        self.round = round_

    def start(self, setup, history):
        pass

    def end(self, summary):
        pass


def test_what_would_be_wrong_is_refused(tmp_path):
    with pytest.raises(UserError, match="scaffold keeps between rounds"):
        served(tmp_path, {**SETTINGS, "algorithm.name": "scaffold"})
