"""Clients that lie, beside honest ones: whatever one of them sends, the others go on."""

import dataclasses
import math

import numpy as np
import pytest

pytest.importorskip("flwr")

from grids import served, spoiled

from efl.algorithms import Part, every_name
from efl.errors import WireError
from efl.server.limits import Measured, NormLimits
from efl.track.progress import PlainProgress
from efl.wire import Dense, Field, Signs, TrainReply, encode
from efl.wire import Message as Wire


def hostile(run, grid, change, rounds=(0,)):
    """Node 101, which has client 1, sends in these rounds what ``change`` makes of its reply."""

    def lie(node, message, reply):
        if message.metadata.message_type != "train" or node.info.node_id != 101 or len(run.history) not in rounds:
            return reply
        sent = Wire.from_bytes(dict(reply.content["efl"])["blob"], "reply")
        return spoiled(reply, blob=change(sent).to_bytes())

    grid.spoil = lie


def with_part(run, name, make):
    """A change of a reply: another part."""

    def change(sent):
        part = make(run.coordinator.model.n)
        return dataclasses.replace(sent, parts={**sent.parts, name: encode(part, run.coordinator.context)})

    return change


def full(n, value):
    return np.full(n, value, np.float32)


def field(fisher, moved):
    return lambda n: Field(None, None, full(n, fisher), full(n, moved))


POISON = {
    "a far anchor": ("efl", "field", field(1.0, 1e30)),
    "an anchor not so far": ("efl", "field", field(1e6, 1e3)),
    "a stiff field": ("fedcurv", "field", field(3e38, 3e38)),
    "a stiff field that does not pull": ("fedcurv", "field", field(3e38, 0.0)),
    "a control": ("scaffold", "control", lambda n: Dense(full(n, 3.4e38))),
    "a gradient": ("mime:lite", "gradient", lambda n: Dense(full(n, 1e30))),
}


@pytest.mark.parametrize("case", POISON)
def test_no_part_of_a_reply_stops_the_others(tmp_path, case):
    algorithm, name, make = POISON[case]
    run, grid, _ = served(tmp_path, {"training.rounds": 2, "algorithm.name": algorithm})
    hostile(run, grid, with_part(run, name, make))
    first, second = run.execute().history
    assert (first["counted"], list(first["refused"])) == ([0, 2, 3], [1])
    assert f"client 1 sent a {name}" in first["refused"][1]
    assert second["counted"] == [0, 1, 2, 3]


def test_bounds_of_each_kind_of_part(tmp_path):
    """‖w‖ = 2, b = 10·2; E = 4 steps of 0.1 make 0.4 of a gradient, B = 5."""
    run, _, _ = served(tmp_path, {"training.batch_size": 5, "training.learning_rate": 0.1})
    settings, n = run.coordinator.settings(0), 4
    w, buffers, zero = (run.coordinator.server.w[:n] * 0 + value for value in (1.0, 0.0, 0.0))
    assert (settings.local_steps, settings.eta) == (4, 0.1)

    vote = Part(Signs, limit="vote")
    declared = {"update": Part(Dense, limit="update"), "vote": vote, "control": Part(Dense), "field": Part(Field)}

    def taken(name, part):
        try:
            NormLimits(10.0).check(1, {name: part}, declared, Measured(w), Measured(buffers), settings)
        except WireError:
            return False
        return True

    def along(length):
        return np.float32([length, 0, 0, 0])

    assert taken("update", Dense(w.numpy() + along(19.9)))
    assert not taken("update", Dense(w.numpy() + along(20.1)))
    assert taken("vote", Signs(np.ones(1000, bool)))
    assert not taken("vote", Signs(np.ones(4, bool), 1.1))
    assert taken("control", Dense(along(49.9)))
    assert not taken("control", Dense(along(50.1)))
    assert taken("buffers", Dense(along(99.9)))
    assert not taken("buffers", Dense(along(100.1)))
    assert taken("field", Field(None, None, along(1), along(19.9)))
    assert not taken("field", Field(None, None, along(1), along(20.1)))
    assert taken("field", Field(None, None, along(5 * 49.9**2), zero.numpy()))
    assert not taken("field", Field(None, None, along(5 * 50.1**2), zero.numpy()))


def test_an_aggregate_that_is_not_finite_changes_nothing(tmp_path, monkeypatch):
    """Should the bounds ever let through what adds up to more than float32 holds."""
    monkeypatch.setattr(NormLimits, "check", lambda *_: None)
    run, grid, _ = served(tmp_path, {"training.rounds": 2, "training.robust": "none", "algorithm.name": "fedcurv"})
    hostile(run, grid, with_part(run, "field", field(3e38, 3e38)))
    first, second = run.execute().history
    assert first["counted"] == []
    assert set(first["refused"].values()) == {"the aggregate is not finite"}
    assert second["counted"] == [0, 1, 2, 3]
    assert run.coordinator.table.accepted.tolist() == [1, 1, 1, 1]


def test_what_clients_cannot_work_with_is_forgotten(tmp_path, monkeypatch):
    """An explicit step is unstable in a stiff field, however little it pulls: everybody leaves the finite numbers."""
    monkeypatch.setattr(NormLimits, "check", lambda *_: None)
    run, grid, _ = served(tmp_path, {"training.rounds": 6, "training.robust": "none", "algorithm.name": "fedcurv"})
    hostile(run, grid, with_part(run, "field", field(1e30, 0.0)))
    history = run.execute().history
    assert [len(record["counted"]) for record in history] == [4, 0, 0, 0, 4, 4]
    assert [record["round"] for record in history if record.get("forgot")] == [3]
    assert not run.coordinator.server.tensors["fisher"].isinf().any()


def with_header(**words):
    entries = ["round", "client", "outcome", "steps", "loss"]
    return lambda sent: dataclasses.replace(
        sent, header=[words.get(key, value) for key, value in zip(entries, sent.header, strict=True)]
    )


@pytest.mark.parametrize("words", [{"steps": math.nan}, {"steps": math.inf}, {"loss": math.nan}, {"steps": 10**15}])
def test_numbers_that_are_none_are_refused(tmp_path, words):
    run, grid, _ = served(tmp_path, {"training.rounds": 1})
    hostile(run, grid, with_header(**words))
    (record,) = run.execute().history
    assert (record["counted"], list(record["refused"])) == ([0, 2, 3], [1])


def test_whatever_a_reply_makes_the_checks_raise_it_is_refused(tmp_path, monkeypatch):
    def check(self, client, *_):
        if client == 1:
            raise ZeroDivisionError("nobody thought of that")

    monkeypatch.setattr(NormLimits, "check", check)
    run, _, _ = served(tmp_path, {"training.rounds": 1})
    (record,) = run.execute().history
    assert record["counted"] == [0, 2, 3]
    assert "cannot be read" in record["refused"][1]


@pytest.mark.parametrize("in_nats", [True, False])
@pytest.mark.parametrize("loss", [1e300, -1e300])
def test_one_clients_loss_does_not_end_the_run_for_all(tmp_path, loss, in_nats):
    run, grid, _ = served(tmp_path, {"training.rounds": 2})
    run.coordinator.loss_limit.in_nats = in_nats
    hostile(run, grid, with_header(loss=loss))
    result = run.execute()
    assert not result.summary["diverged"]
    first, second = result.history
    assert (first["counted"], "loss" in first["refused"][1]) == ([0, 2, 3], True)
    assert second["counted"] == [0, 1, 2, 3]


def test_a_message_that_flower_cannot_read_is_refused(tmp_path):
    """Pulling it raises an error, whatever else is pulled with it."""
    run, grid, _ = served(tmp_path, {"training.rounds": 2})
    garbage = set()

    def send_garbage(node, message, reply):
        if message.metadata.message_type == "train" and node.info.node_id == 101:
            garbage.add(message.metadata.message_id)
        return reply

    def pull(ids, go=grid.pull_messages):
        found = go(ids)
        if garbage & set(ids):
            raise ValueError("garbage")
        return found

    grid.spoil, grid.pull_messages = send_garbage, pull
    for record in run.execute().history:
        assert record["counted"] == [0, 2, 3]
        assert "cannot be read (ValueError)" in record["refused"][1]


def test_a_flower_that_is_gone_is_nobodys_bad_message(tmp_path):
    run, grid, _ = served(tmp_path, {"training.rounds": 1})

    def gone(*_):
        raise ConnectionError("no SuperLink")

    def pull(ids):
        grid.get_nodes = gone
        gone()

    grid.pull_messages = pull
    with pytest.raises(ConnectionError):
        run.execute()


def test_a_reply_that_names_another_request_is_taken_for_what_it_is(tmp_path):
    """A late reply to the first request says that it answers the second, which is answered as well."""
    run, grid, lines = served(tmp_path, {"training.rounds": 3})
    kept = []

    def late(node, message, reply):
        if message.metadata.message_type != "train" or node.info.node_id != 101 or len(kept) == 2:
            return reply
        kept.append(reply)
        if len(kept) == 1:
            return None
        asked = kept[0].metadata.reply_to_message_id
        kept[0].metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
        grid.replies[asked] = kept[0]
        return reply

    grid.spoil = late
    history = run.execute().history
    assert [1 in record["counted"] for record in history] == [False, True, True]
    assert sum(line.startswith("reply from client 1 arrived after the deadline") for line in lines) == 1


def test_messages_that_flower_does_not_take_are_not_waited_for(tmp_path):
    run, grid, lines = served(tmp_path, {"training.rounds": 2})

    def push(messages, go=grid.push_messages):
        too_large = messages[0].metadata.message_type == "train" and not run.history
        return [] if too_large else go(messages)

    grid.push_messages = push
    first, second = run.execute().history
    assert (first["counted"], second["counted"]) == ([], [0, 1, 2, 3])
    assert "not sent: Flower did not accept 4 of 4 messages" in lines


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_what_is_said_of_a_refusal_is_one_short_line(tmp_path, kind):
    run, grid, lines = served(tmp_path, {"training.rounds": 1})
    run.observers = [PlainProgress(lines.append)]
    forged = "no\nefl: finished: 5 rounds\r\x1b[2J\u2028" + "x" * 10_000

    def lie(node, message, reply):
        bad = message.metadata.message_type == kind and node.info.node_id == 101
        return spoiled(reply, error=forged) if bad else reply

    grid.spoil = lie
    run.execute()
    (line,) = [line for line in lines if line.startswith("rejected") and "client 1: " in line]
    assert len(line) < 300
    assert line.isprintable()
    assert "no efl: finished" in line


def test_names_of_parts_do_not_fill_the_records(tmp_path):
    run, grid, _ = served(tmp_path, {"training.rounds": 1})
    hostile(run, grid, lambda sent: dataclasses.replace(sent, parts={"x" * 10**6: b""}))
    (record,) = run.execute().history
    assert len(record["refused"][1]) <= 200


@pytest.mark.parametrize(
    "metrics",
    [
        {"accuracy": [math.nan, 1.0]},
        {"accuracy": [1.5, 1.0]},
        {"accuracy": [0.0, 0.0]},
        {"accuracy": [-1.0, 1.0]},
        {"accuracy": "good"},
        {"loss": [1.0, 1.0]},
        None,
    ],
)
def test_an_evaluation_without_a_valid_accuracy_is_rejected_and_left_out(tmp_path, metrics):
    run, grid, lines = served(tmp_path, {"training.rounds": 1})

    def lie(node, message, reply):
        if message.metadata.message_type != "evaluate" or node.info.node_id != 101:
            return reply
        return spoiled(reply, blob=Wire("evaluated", {"round": 0, "client": 1, "metrics": metrics}).to_bytes())

    grid.spoil = lie
    assert 0 <= run.execute().summary["final_mean_accuracy"] <= 1
    assert sum(line.startswith("rejected: evaluation by client 1: ") for line in lines) == 1


@pytest.mark.parametrize("blob", [None, b"", b"garbage" * 9])
def test_an_evaluation_that_cannot_be_read_is_rejected(tmp_path, blob):
    run, grid, lines = served(tmp_path, {"training.rounds": 1})

    def lie(node, message, reply):
        bad = message.metadata.message_type == "evaluate" and node.info.node_id == 101
        return spoiled(reply, blob=blob) if bad else reply

    grid.spoil = lie
    run.execute()
    assert sum(line.startswith("rejected: evaluation by client 1: ") for line in lines) == 1


def test_who_asks_for_the_model_has_not_answered_in_vain(tmp_path):
    run, grid, _ = served(tmp_path, {"training.rounds": 5, "algorithm.name": "scaffold"})

    def ask(node, message, reply):
        if message.metadata.message_type != "train" or len(run.history) == 0:
            return reply
        return spoiled(reply, blob=TrainReply(len(run.history), node.info.node_id - 100, needs_model=True).to_bytes())

    grid.spoil = ask
    assert not any(record.get("forgot") for record in run.execute().history)
    assert run.coordinator.server.tensors["control"].any()


@pytest.mark.parametrize("algorithm", every_name())
def test_nothing_that_honest_clients_send_is_refused(tmp_path, algorithm):
    run, _, _ = served(tmp_path, {"training.rounds": 2, "algorithm.name": algorithm})
    for record in run.execute().history:
        assert (record["counted"], "refused" in record) == ([0, 1, 2, 3], False)
