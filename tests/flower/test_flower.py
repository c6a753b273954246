"""The whole of server and clients over a grid without processes."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message
from grids import CONFIG, FakeGrid, load_data, make_model, on_one_machine, served, spoiled

from efl.algorithms.compression.error_feedback import ErrorFeedback
from efl.client.state_file import StateFile, request_hash
from efl.errors import UserError, WireError
from efl.flower.client import Node
from efl.flower.config import experiment_of, fleet_of
from efl.storage import read_state
from efl.wire import Dense, encode
from efl.wire import Message as Wire


@pytest.mark.parametrize("name", ["efl", "fedavg", "scaffold", "fedper"])
def test_the_same_bytes_and_the_same_model_as_on_one_machine(tmp_path, name):
    config = {"algorithm.name": name, "training.rounds": 5}
    run, _, _ = served(tmp_path, config)
    summary, expected = run.execute().summary, on_one_machine(config)
    for key in ("model_sha256", "bytes", "train_loss", "final_mean_accuracy", "bmta_global"):
        assert summary[key] == expected[key], key
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.toml", "metrics.jsonl", "summary.json", "checkpoint", "model.safetensors"} <= names


def test_tasks_and_optimisers_are_those_of_one_machine(tmp_path):
    optimiser = {"name": "sgd", "momentum": 0.9, "clip": 1.0}
    config = {"training.metrics": "loss", "training.rounds": 4, "algorithm.name": "efl"}
    run, _, _ = served(tmp_path, config | {f"training.optimiser.{key}": value for key, value in optimiser.items()})
    summary, expected = run.execute().summary, on_one_machine(config | {"training.optimiser": optimiser})
    assert summary["metric"] == "loss"
    for key in ("model_sha256", "bytes", "bmta_global", "final_metrics"):
        assert summary[key] == expected[key], key


def test_own_models_are_looked_at_where_they_are(tmp_path):
    config = {"training.evaluate_own_every": 3, "algorithm.name": "scaffold"}
    run, _, _ = served(tmp_path, config)
    assert run.execute().summary["bmta_local"] == on_one_machine(config)["bmta_local"]


def test_a_client_asked_the_same_again_gives_the_same_answer(tmp_path):
    run, grid, _ = served(tmp_path, {"training.rounds": 1})
    run.execute()
    node = Node(make_model, load_data, grid.nodes[100].node_config, experiment_of(grid.config))
    envelope = next(dict(m.content["efl"]) for m in grid.pushed if m.metadata.message_type == "train")
    file = StateFile(tmp_path / "clients", envelope["run"], 0)
    before = file.path.read_bytes()
    first, again = (node.train({**envelope, "began": 0.0}) for _ in range(2))
    assert first == again
    assert file.path.read_bytes() == before


class KilledError(Exception):
    """Stands for kill -9 at this place."""


def test_everything_made_was_counted_once_or_is_still_in_hand(tmp_path, monkeypatch):
    """Client 1's first reply is lost; client 2 is killed before it has written its second work down, 3 after it has."""
    config = {"training.rounds": 4, "algorithm.density_up": 0.05, "network.patience": 9, "network.rejoin": 0.0}
    run, grid, _ = served(tmp_path, config | {"training.robust": "none"})
    made, uploaded, worked = {}, {}, {}
    encode_up, save = ErrorFeedback.encode_up, StateFile.save

    def encoded(self, work, on_sent=None):
        moved = work.delta[0].double().numpy()
        sent = encode_up(self, work, on_sent)
        whole = sent[0].onto(np.zeros(work.model.n, np.float32)).astype(np.float64)
        worked["last"] = (work.settings.round, moved, whole)
        return sent

    def saved(self, host, cached):
        round_, moved, whole = worked["last"]
        if (self.client, round_) == (2, 1):
            raise KilledError
        made[self.client, round_], uploaded[self.client, round_] = moved, whole
        save(self, host, cached)
        if (self.client, round_) == (3, 1):
            raise KilledError

    def lose(node, message, reply):
        first = message.metadata.message_type == "train" and not run.history
        return None if first and node.node_config["partition-id"] == 1 else reply

    def answer(node, message, go=grid.answer):
        try:
            return go(node, message)
        except KilledError:
            return Message(Error(code=8), reply_to=message)

    monkeypatch.setattr(ErrorFeedback, "encode_up", encoded)
    monkeypatch.setattr(StateFile, "save", saved)
    grid.answer, grid.spoil = answer, lose
    history = run.execute().history
    absent = {record["round"]: {0, 1, 2, 3} - set(record["counted"]) for record in history}
    assert absent == {0: {1}, 1: {2, 3}, 2: set(), 3: set()}
    for client in range(4):
        (path,) = (tmp_path / "clients").glob(f"*/client-{client}.safetensors")
        rows = read_state(path)["host"]["store"]["rows"]
        counted = [record["round"] for record in history if client in record["counted"]]
        total = sum(moved for (who, _), moved in made.items() if who == client)
        arrived = sum(uploaded[client, round_] for round_ in counted)
        np.testing.assert_allclose(arrived + rows["residual"][0].double().numpy(), total, atol=1e-6)


def test_a_client_out_of_time_sends_what_it_has(tmp_path):
    config = {"training.local_steps": 50_000, "training.rounds": 1}
    run, _, _ = served(tmp_path, config, **{"network.deadline": 1.0})
    (record,) = run.execute().history
    assert record["incomplete"] == 4
    assert sorted(record["counted"]) == [0, 1, 2, 3]
    assert all(0 < steps < 50_000 for steps in record["clients"].values())


def test_an_algorithm_without_use_for_it_hears_only_that_the_client_was_slow(tmp_path):
    config = {"training.local_steps": 50_000, "training.rounds": 1, "algorithm.name": "fedavg"}
    run, _, _ = served(tmp_path, config, **{"network.deadline": 1.0})
    (record,) = run.execute().history
    assert (record["incomplete"], record["counted"], record["bytes_up"]) == (4, [], 0)


def test_silent_clients_are_not_waited_for_longer_than_the_deadline(tmp_path):
    run, grid, lines = served(tmp_path, {"training.rounds": 2})
    kept = []

    def late(node, message, reply):
        if message.metadata.message_type == "train" and node.info.node_id == 103 and not kept:
            kept.append(reply)
            return None
        if kept and message.metadata.message_type == "train":  # and in the next round the late one turns up
            grid.replies.setdefault(kept[0].metadata.reply_to_message_id, kept[0])
        return reply

    grid.spoil = late
    first, second = run.execute().history
    assert first["counted"] == [0, 1, 2]
    assert first["inactive"] == 1
    assert second["bytes"]["up"]["lost"] == len(dict(kept[0].content["efl"])["blob"])
    assert any(line.startswith("reply from client 3 arrived after the deadline") for line in lines)


REFUSED = {
    "another run": (lambda reply: spoiled(reply, run="another"), "another run"),
    "another client": (lambda reply: spoiled(reply, client=3), "it says it is client 3"),
    "garbage": (lambda reply: spoiled(reply, blob=b"garbage" * 9), "ends too early"),
    "no envelope": (lambda reply: _emptied(reply), "without an envelope"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_replies_are_refused_and_training_goes_on(tmp_path, case):
    spoil, why = REFUSED[case]
    run, grid, _ = served(tmp_path, {"training.rounds": 2})

    def bad(node, message, reply):
        return spoil(reply) if message.metadata.message_type == "train" and node.info.node_id == 101 else reply

    grid.spoil = bad
    for record in run.execute().history:
        assert record["counted"] == [0, 2, 3]
        (client,) = record["refused"]
        assert (client, why in record["refused"][client]) == (1, True)


def _emptied(reply):
    reply.content.clear()
    return reply


def test_a_replayed_reply_is_refused(tmp_path):
    run, grid, _ = served(tmp_path, {"training.rounds": 2})
    old = {}

    def replay(node, message, reply):
        if message.metadata.message_type != "train" or node.info.node_id != 100:
            return reply
        first = old.setdefault("blob", dict(reply.content["efl"])["blob"])
        return spoiled(reply, blob=first)

    grid.spoil = replay
    first, second = run.execute().history
    assert "refused" not in first
    assert "round 0" in second["refused"][0]


@pytest.mark.parametrize(("value", "why"), [(np.nan, "finite"), (1e6, "norm")])
def test_updates_that_are_not_finite_or_absurdly_long_are_refused(tmp_path, value, why):
    run, grid, _ = served(tmp_path, {"training.rounds": 1, "algorithm.name": "fedavg"})

    def poison(node, message, reply):
        if message.metadata.message_type != "train" or node.info.node_id != 100:
            return reply
        sent = Wire.from_bytes(dict(reply.content["efl"])["blob"], "reply")
        model = np.full(run.coordinator.model.n, value, np.float32)
        parts = {"update": encode(Dense(model), run.coordinator.plain)}
        return spoiled(reply, blob=dataclasses.replace(sent, parts=parts).to_bytes())

    grid.spoil = poison
    (record,) = run.execute().history
    assert why in record["refused"][0]
    assert record["counted"] == [1, 2, 3]


def test_a_forged_client_id_is_refused(tmp_path):
    grid = FakeGrid(CONFIG, tmp_path, names=True)
    grid.nodes[200] = grid.node(200, 2)  # says it is client 2, registered by no name
    grid.nodes[201] = grid.node(201, 3, "client-1")  # says it is client 3, registered as client 1
    run, _, lines = served(tmp_path, grid=grid)
    result = run.execute()
    assert sum("rejected: node 20" in line for line in lines) == 2
    assert result.summary["model_sha256"] == on_one_machine()["model_sha256"]


def test_clients_come_and_go(tmp_path):
    """Client 3 comes after the first round; client 0 cannot be reached from the third on, and has left two later."""
    config = {"training.rounds": 6, "network.wait_for": 3, "network.patience": 2, "fleet.on_departure": "drop"}
    grid = FakeGrid(CONFIG, tmp_path, clients=3)
    run, grid, _ = served(tmp_path, config, grid)

    def events(node, message, reply):
        if message.metadata.message_type == "train":
            grid.now += 2  # a round takes its time
            if len(run.history) == 1:
                grid.nodes[103] = grid.node(103, 3)
            if len(run.history) == 2:
                grid.nodes.pop(100, None)
        return reply

    grid.spoil = events
    history = run.execute().history
    changes = {r["round"]: [(c["what"], c["clients"]) for c in r["membership"]] for r in history if "membership" in r}
    (arrived,), (departed,) = (
        [r for r in changes if changes[r][0][0] == "arrived"],
        [r for r in changes if changes[r][0][0] == "departed"],
    )
    assert changes[arrived] == [("arrived", [3])]
    assert changes[departed] == [("departed", [0])]
    assert 3 in history[arrived]["counted"]
    assert "0" not in history[departed]["clients"]
    assert np.flatnonzero(run.coordinator.table.objective).tolist() == [1, 2, 3]


def test_a_node_that_comes_back_as_a_stranger_takes_its_place_again(tmp_path):
    run, grid, _ = served(tmp_path, {"training.rounds": 4, "network.patience": 9})

    def restart(node, message, reply):
        if message.metadata.message_type == "train" and len(run.history) == 1 and 101 in grid.nodes:
            del grid.nodes[101]
            grid.nodes[301] = grid.node(301, 1)
        grid.now += 1
        return reply

    grid.spoil = restart
    history = run.execute().history
    assert 1 in history[-1]["counted"]


def test_settings_that_only_simulated_clients_can_be_told_are_refused():
    with pytest.raises(UserError, match="stragglers"):
        fleet_of(experiment_of({"fleet.stragglers": 0.5}))
    with pytest.raises(UserError, match=r"section\.key"):
        experiment_of({"rounds": 3})


def test_a_request_for_somebody_else_is_refused_by_the_client(tmp_path):
    node = Node(make_model, load_data, {"partition-id": 1, "state-dir": str(tmp_path)}, experiment_of(CONFIG))
    blob = Wire("request", {"client": 2}).to_bytes()
    with pytest.raises(WireError, match="client 2"):
        node.train({"run": "abc", "client": 2, "blob": blob, "began": 0.0})
    with pytest.raises(WireError, match="without a request"):
        node.train({"run": "abc", "client": 1, "began": 0.0})
    assert request_hash(blob) != request_hash(b"")


def test_errors_of_flower_are_silence(tmp_path):
    run, grid, _ = served(tmp_path, {"training.rounds": 1})

    def gone(node, message, reply):
        broken = message.metadata.message_type == "train" and node.info.node_id == 102
        if not broken:
            return reply
        said_by_the_superlink = Message(Error(code=5), reply_to=message)
        said_by_the_superlink.metadata.__dict__["_src_node_id"] = 1
        return said_by_the_superlink

    grid.spoil = gone
    (record,) = run.execute().history
    assert (record["inactive"], record["counted"], "refused" in record) == (1, [0, 1, 3], False)


def test_a_node_killed_and_started_anew_has_its_place_again_once_flower_has_noticed(tmp_path):
    """Without keys it is a stranger who says it is client 1, while the old node still counts as online."""
    run, grid, lines = served(tmp_path, {"training.rounds": 8, "network.patience": 9})

    def restart(node, message, reply):
        if message.metadata.message_type != "train":
            return reply
        grid.now += 10
        if len(run.history) == 1:
            grid.nodes.setdefault(301, grid.node(301, 1))
        if len(run.history) == 2:
            grid.nodes.pop(101, None)
        return None if node.info.node_id == 101 and len(run.history) == 1 else reply

    grid.spoil = restart
    there = [1 in record["counted"] for record in run.execute().history]
    assert there[:3] == [True, False, False]
    assert there[-1]
    assert sum("that is another node" in line for line in lines) == 1


def test_a_node_turned_away_is_asked_again_when_it_has_been_away(tmp_path):
    run, grid, lines = served(tmp_path, {"training.rounds": 5, "network.wait_for": 3})
    broken, repaired = grid.node(101, 7), grid.node(101, 1)  # the same key
    grid.nodes[101] = broken
    grid.answer = lambda node, message, go=grid.answer: (
        Message(Error(code=2), reply_to=message) if node is broken else go(node, message)
    )

    def repair(node, message, reply):
        if message.metadata.message_type == "train":
            grid.now += 2
            if len(run.history) == 1:
                grid.nodes.pop(101, None)
            if len(run.history) == 2:
                grid.nodes[101] = repaired
        return reply

    grid.spoil = repair
    history = run.execute().history
    assert 1 not in history[0]["counted"]
    assert 1 in history[-1]["counted"]
    assert sum(line.startswith("rejected: node") for line in lines) == 1
