"""What heals itself: damaged files, full disks, nodes that go and come back, starts that would never begin."""

import logging
import os
import re

import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message
from grids import CONFIG, FakeGrid, on_one_machine, served

from efl.bench import hostile
from efl.client.state_file import DAMAGED
from efl.flower.client import Node
from efl.server.places import promise_place


def cut(data):
    return data[: len(data) // 2]


def emptied(data):
    return b""


def flipped(place):
    """One bit, at so much of the file's length."""

    def flip(data):
        at = int(place * (len(data) - 1))
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    return flip


DAMAGE = {
    "cut": cut,
    "emptied": emptied,
    "another file": lambda data: b"not at all a state" * 100,
    "a bit of its header": flipped(0.0005),
    "a bit in the middle": flipped(0.5),
    "its last bit": flipped(1.0),
}


@pytest.mark.parametrize(("case", "algorithm"), [*((case, "efl") for case in DAMAGE), ("cut", "scaffold")])
def test_a_client_whose_file_is_damaged_asks_for_the_model_and_goes_on(tmp_path, case, algorithm, caplog):
    run, grid, _ = served(tmp_path, {"training.rounds": 4, "algorithm.name": algorithm})
    damaged = []

    def damage(node, message, reply):
        if message.metadata.message_type == "train" and len(run.history) == 1 and not damaged:
            (file,) = (tmp_path / "clients").glob("*/client-0.safetensors")
            damaged.append(DAMAGE[case](file.read_bytes()))
            file.write_bytes(damaged[0])
        return reply

    grid.spoil = damage
    with caplog.at_level(logging.WARNING, "efl"):
        history = run.execute().history
    assert [0 in record["counted"] for record in history] == [True, True, False, True]
    assert not any("refused" in record for record in history)
    (aside,) = (tmp_path / "clients").glob(f"*/client-0.*{DAMAGED}")
    assert aside.read_bytes() == damaged[0]
    (said,) = [record.getMessage() for record in caplog.records if "is damaged" in record.getMessage()]
    assert "\n" not in said


def test_a_client_without_its_file_asks_for_the_model_too(tmp_path):
    run, grid, _ = served(tmp_path, {"training.rounds": 4})

    def lose(node, message, reply):
        if message.metadata.message_type == "train" and len(run.history) == 1:
            for file in (tmp_path / "clients").glob("*/client-0.safetensors"):
                file.unlink()
        return reply

    grid.spoil = lose
    assert [0 in record["counted"] for record in run.execute().history] == [True, True, False, True]


def test_a_client_whose_disk_is_full_says_so_in_a_line_and_the_others_go_on(tmp_path, monkeypatch):
    run, _, _ = served(tmp_path, {"training.rounds": 3})

    def full(path, state):
        if "client-1" in path.name:
            raise OSError(28, os.strerror(28))
        return write(path, state)

    from efl.client.state_file import write_state as write

    monkeypatch.setattr("efl.client.state_file.write_state", full)
    for record in run.execute().history:
        assert record["counted"] == [0, 2, 3]
        assert "cannot be written (No space left on device)" in record["refused"][1]


def test_a_node_killed_in_a_round_and_back_soon_is_asked_again_and_the_model_is_the_same(tmp_path):
    """Nodes 101 and 102 die with their second request: one before it could work, one when it had; both come back."""
    expected = on_one_machine()
    run, grid, _ = served(tmp_path, **{"network.deadline": 60.0})
    dead = {}

    def die(node, message, go=grid.answer):
        number = node.info.node_id
        if (
            message.metadata.message_type == "train"
            and len(run.history) == 1
            and number in (101, 102)
            and number not in dead
        ):
            if number == 102:
                go(node, message)
            dead[number] = grid.nodes.pop(number)
            return Message(Error(code=5), reply_to=message)
        return go(node, message)

    def sleep(seconds, go=grid.sleep):
        go(seconds)
        if len(dead) == 2 and grid.now > 10:
            grid.nodes.update(dead)

    grid.answer, grid.sleep = die, sleep
    grid.nodes = dict(grid.nodes)
    run.setup.mailbox.sleep = sleep
    history = run.execute()
    assert len(dead) == 2
    assert [record["counted"] for record in history.history] == [[0, 1, 2, 3]] * 3
    assert history.summary["model_sha256"] == expected["model_sha256"]


def test_a_client_away_as_a_round_begins_is_asked_when_it_is_back(tmp_path):
    expected = on_one_machine()
    run, grid, _ = served(tmp_path, **{"network.deadline": 60.0})

    def sleep(seconds, go=grid.sleep):
        go(seconds)
        if run.history and 103 not in grid.nodes and grid.now > gone[0] + 12:
            grid.nodes[103] = grid.node(103, 3)

    gone = []

    def leave(node, message, reply):
        if message.metadata.message_type == "train" and len(run.history) == 0:
            grid.now += 4  # so that who is online is looked at
            if node.info.node_id == 103:
                del grid.nodes[103]
                gone.append(grid.now)
        return reply

    grid.spoil = leave
    run.setup.mailbox.sleep = sleep
    result = run.execute()
    assert gone
    assert result.summary["model_sha256"] == expected["model_sha256"]


def test_who_does_not_come_back_is_not_waited_for_round_after_round(tmp_path):
    run, grid, _ = served(tmp_path, {"training.rounds": 6, "network.patience": 9}, **{"network.deadline": 100.0})

    def leave(node, message, reply):
        if message.metadata.message_type == "train" and len(run.history) == 1 and node.info.node_id == 103:
            grid.nodes.pop(103, None)
            return Message(Error(code=5), reply_to=message)
        return reply

    grid.spoil = leave
    history = run.execute().history
    assert [record["counted"] for record in history[1:]] == [[0, 1, 2]] * 5
    assert grid.now < 60  # 30 of them once, for somebody who may have come back


def test_one_node_away_three_rounds_in_five_restarts_nothing(tmp_path):
    config = {"training.rounds": 41, "training.local_steps": 1, "network.rejoin": 0.0, "training.evaluate_every": 41}
    run, grid, _ = served(tmp_path, config)
    node = grid.nodes[103]

    def flap(*_):
        round_ = len(run.history)
        grid.now += 4
        if round_ % 5 >= 2:
            grid.nodes.pop(103, None)
        else:
            grid.nodes[103] = node

    def spoil(one, message, reply):
        flap()
        return reply

    grid.spoil = spoil
    history = run.execute().history
    changes = [change["what"] for record in history for change in record.get("membership", [])]
    assert changes.count("returned") >= 5
    assert changes.count("departed") >= 5
    assert "arrived" not in changes
    assert history[40]["eta"] == pytest.approx(0.1 / (1 + 40 / 50))


def test_a_start_waits_for_a_time_and_says_for_whom(tmp_path):
    run, grid, lines = served(tmp_path, {"training.rounds": 2}, **{"network.start_timeout": 50.0})
    grid.answer = lambda node, message, go=grid.answer: (
        Message(Error(code=2), reply_to=message) if node.info.node_id == 102 else go(node, message)
    )
    history = run.execute().history
    assert [record["counted"] for record in history] == [[0, 1, 3]] * 2
    assert 50 <= grid.now < 70
    waiting = [line for line in lines if line.startswith("waiting for clients: 3 of 4 are online")]
    assert any("missing: 2" in line and "rejected: node 102" in line for line in waiting)
    (began,) = [line for line in lines if line.startswith("waited for 50 s; beginning with fewer clients")]
    assert "missing: 2" in began


def test_a_start_with_nobody_at_all_waits_for_somebody(tmp_path):
    run, grid, lines = served(tmp_path, {"training.rounds": 1}, **{"network.start_timeout": 5.0})
    nodes = dict(grid.nodes)
    grid.nodes.clear()

    def sleep(seconds, go=grid.sleep):
        go(seconds)
        if grid.now > 100:
            grid.nodes.setdefault(101, nodes[101])

    run.setup.mailbox.sleep = sleep
    (record,) = run.execute().history
    assert record["counted"] == [1]
    assert "waiting for clients: 0 of 4 are online; missing: 0, 1, 2, 3" in lines


def test_a_second_key_by_a_clients_name_does_not_take_its_place(tmp_path):
    grid = FakeGrid(CONFIG, tmp_path, names=True)
    run, grid, lines = served(tmp_path, {"training.rounds": 6}, grid)

    def come(node, message, reply):
        grid.now += 1
        if run.history:
            grid.nodes.setdefault(200, grid.node(200, 0, "client-0"))
        return reply

    grid.spoil = come
    history = run.execute().history
    assert [record["counted"] for record in history] == [[0, 1, 2, 3]] * 6
    assert not any("refused" in record for record in history)
    (line,) = [line for line in lines if line.startswith("rejected: node 200")]
    assert "efl deploy move-client 0" in line
    assert not any(m.metadata.dst_node_id == 200 for m in grid.pushed if m.metadata.message_type == "train")


def test_the_operator_gives_a_place_to_another_key_while_the_server_runs(tmp_path):
    grid = FakeGrid(CONFIG, tmp_path, names=True)
    run, grid, lines = served(tmp_path, {"training.rounds": 8}, grid)

    def move(node, message, reply):
        grid.now += 2
        if message.metadata.message_type == "train" and len(run.history) == 2 and 200 not in grid.nodes:
            grid.nodes[200] = grid.node(200, 0, "client-0")
            promise_place(tmp_path / "run", 0, (b"key-%d" % 200).hex())
        return reply

    grid.spoil = move
    history = run.execute().history
    asked = [m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == "train"]
    assert asked[-4:].count(200) == 1
    assert 100 not in asked[-8:]
    assert history[-1]["counted"] == [0, 1, 2, 3]
    assert not list((tmp_path / "run").glob("place-*"))
    assert sum(bool(re.match("rejected: node 100 was registered as client-0", line)) for line in lines) <= 1


def test_nobody_counts_as_more_than_ten_times_the_median(tmp_path):
    run, grid, _ = served(tmp_path, {"training.rounds": 2, "training.robust": "none"})

    def boast(node, message, go=grid.answer):
        reply = go(node, message)
        if message.metadata.message_type == "query" and node.info.node_id == 101:
            reply.content["efl"]["samples"] = 10**9
        return reply

    grid.answer = boast
    run.execute()
    sizes, shares = run.coordinator.table.sizes, run.coordinator.table.shares
    honest = sorted(sizes[[0, 2, 3]].tolist())
    assert sizes[1] == 10**9
    assert shares[1] == pytest.approx(10 * honest[1] / (10 * honest[1] + sum(honest)))


@pytest.mark.parametrize("samples", [2**40, 10**9 + 1])
def test_a_client_that_claims_too_many_samples_is_rejected(tmp_path, samples):
    run, grid, lines = served(tmp_path, {"training.rounds": 1}, **{"network.start_timeout": 10.0})

    def boast(node, message, go=grid.answer):
        reply = go(node, message)
        if message.metadata.message_type == "query" and node.info.node_id == 101:
            reply.content["efl"]["samples"] = samples
        return reply

    grid.answer = boast
    (record,) = run.execute().history
    assert record["counted"] == [0, 2, 3]
    assert any(f"says client 1 has {samples} samples" in line for line in lines)


def test_the_lies_of_the_chaos_bench_are_all_rejected(tmp_path, monkeypatch):
    honest, lying = Node.train, hostile._lying(Node.train)
    monkeypatch.setattr(Node, "train", lambda node, letter: (lying if node.client == 1 else honest)(node, letter))
    run, _, _ = served(tmp_path, {"training.rounds": 7})
    history = run.execute().history
    assert [record["counted"] for record in history[2:]] == [[0, 2, 3]] * 5
    assert history[1]["counted"] == [0, 1, 2, 3]  # the first reply to be sent again is that of its own round
    reasons = [record["refused"][1] for record in history if "refused" in record]
    assert len(set(reasons)) >= 4
