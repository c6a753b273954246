"""A server that is stopped at some moment, and started again: over a grid without processes."""

import threading
from contextlib import ExitStack

import pytest
import torch

pytest.importorskip("flwr")

from grids import CONFIG, FakeGrid, on_one_machine, served
from stopping import StopAt

from efl.errors import UserError
from efl.flower.config import experiment_of
from efl.runs.directory import RunDirectory
from efl.server.registry import Node, Registry
from efl.storage import read_state


def stops_in(run, round_):
    """A way to spoil replies that stops the server in a round, when two of four clients have answered."""

    def stop(node, message, reply):
        if message.metadata.message_type == "train" and len(run.history) == round_ and node.info.node_id == 102:
            raise KeyboardInterrupt
        return reply

    return stop


class LateNodes:
    """A grid whose nodes come online so many seconds from now, each a little later than the one before."""

    def __init__(self, grid, seconds):
        nodes, go, start = dict(grid.nodes), grid.get_nodes, grid.now
        grid.nodes.clear()

        def get_nodes():
            there = int((grid.now - start) / seconds * len(nodes))
            grid.nodes |= dict(list(nodes.items())[:there])
            return go()

        grid.get_nodes = get_nodes


def test_a_server_stopped_in_a_round_comes_to_the_same_model(tmp_path):
    whole, _, _ = served(tmp_path / "whole")
    expected = whole.execute().summary

    grid = FakeGrid(CONFIG, tmp_path / "cut")
    run, grid, _ = served(tmp_path / "cut", grid=grid)

    grid.spoil = stops_in(run, 1)
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    grid.spoil = lambda node, message, reply: reply
    again, _, _ = served(tmp_path / "cut", grid=grid)
    summary = again.execute().summary
    assert summary["model_sha256"] == expected["model_sha256"]
    assert summary["bytes"] == expected["bytes"]


def test_a_second_server_on_the_same_directory_is_refused_and_does_no_harm(tmp_path):
    run, grid, _ = served(tmp_path)
    tried = []

    def second(node, message, reply):
        if message.metadata.message_type == "train" and len(run.history) == 1 and not tried:
            tried.append(len(grid.pushed))
            with pytest.raises(UserError, match="at work"):
                served(tmp_path, grid=grid)[0].execute()
            tried.append(len(grid.pushed))
        return reply

    grid.spoil = second
    assert run.execute().summary["model_sha256"] == on_one_machine()["model_sha256"]
    assert len(tried) == 2
    assert tried[0] == tried[1]  # it asked nobody


def test_a_server_waits_for_its_predecessor_to_be_gone(tmp_path):
    run, _, _ = served(tmp_path)
    run.patience = 30.0
    held = ExitStack()
    held.enter_context(run.directory.in_use())
    threading.Timer(0.5, held.close).start()
    assert run.execute().summary["rounds"] == on_one_machine()["rounds"]


def test_a_server_put_back_to_an_earlier_checkpoint_and_its_clients_have_the_same_model(tmp_path):
    """Stopped in round 3, when some have answered it; put back to round 2, which is played without client 3."""
    config = {"training.rounds": 5}
    run, grid, _ = served(tmp_path, config)

    grid.spoil = stops_in(run, 3)
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    older, newest = sorted((tmp_path / "run" / "checkpoint").glob("round-*"))
    newest.unlink()
    again, _, _ = served(tmp_path, config, grid)

    def lose(node, message, reply):
        away = message.metadata.message_type == "train" and len(again.history) == 2 and node.info.node_id == 103
        return None if away else reply

    grid.spoil = lose
    counted = [record["counted"] for record in again.execute().history]
    assert (older.name, counted[2:]) == ("round-000002.safetensors", [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]])
    files = [next((tmp_path / "clients").glob(f"*/client-{client}.*")) for client in range(4)]
    models = [read_state(file)["host"]["w"] for file in files]
    assert all(torch.equal(model, models[3]) for model in models)


def test_starting_over_means_another_name_where_clients_remember_the_old_one(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", experiment_of(CONFIG))
    with pytest.raises(UserError, match=r"delete .*run/checkpoint to start"):
        directory.history(1)
    directory.name.write_text("abc")
    with pytest.raises(UserError, match=r"delete .*run to start"):
        directory.history(1)


def test_a_server_killed_before_it_could_write_its_summary_writes_it(tmp_path):
    expected, grid, _ = served(tmp_path / "whole")
    expected = expected.execute().summary
    run, grid, _ = served(tmp_path)
    run.save_model = lambda path: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    again, _, _ = served(tmp_path, grid=grid)
    LateNodes(grid, 3.0)
    summary = again.execute().summary
    assert expected["final_mean_accuracy"] is not None
    assert summary["final_mean_accuracy"] == expected["final_mean_accuracy"]


def test_a_server_killed_when_it_made_its_directory_makes_it_again(tmp_path):
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "config.toml.4194305.part").write_text("half of")
    run, _, _ = served(tmp_path)
    assert {path.name for path in run.directory.path.iterdir()} >= {"config.toml", "checkpoint", "run-id"}
    assert not list(run.directory.path.glob("*.part"))
    for other in ("mine", "checkpoint/mine"):
        folder = tmp_path / other.replace("/", "-")
        (folder / "checkpoint").mkdir(parents=True)
        (folder / other).write_text("")
        with pytest.raises(UserError, match="not empty"):
            RunDirectory.create(folder, experiment_of(CONFIG))


@pytest.mark.parametrize("stopped", ["in the first round", "in the second", "between them"])
def test_a_server_started_again_waits_for_those_who_were_there(tmp_path, stopped):
    expected = on_one_machine()
    run, grid, _ = served(tmp_path)
    stop_in = {"in the first round": 0, "in the second": 1}.get(stopped)

    grid.spoil = stops_in(run, stop_in)
    run.observers = [StopAt(0 if stop_in is None else None)]  # after a round, when the next is not yet opened
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    grid.spoil = lambda node, message, reply: reply
    again, _, lines = served(tmp_path, grid=grid)
    LateNodes(grid, 3.0)
    summary = again.execute().summary
    assert summary["model_sha256"] == expected["model_sha256"]
    assert sum("that were online before" in line for line in lines) == 1


def test_a_server_started_again_does_not_wait_for_ever(tmp_path):
    run, grid, _ = served(tmp_path)
    run.observers = [StopAt(0)]
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    del grid.nodes[103]
    began = grid.now
    again, _, _ = served(tmp_path, grid=grid)
    history = again.execute().history
    assert [record["counted"] for record in history[1:]] == [[0, 1, 2]] * 2
    assert grid.now - began < 10


def test_who_comes_in_an_interrupted_round_arrives_with_the_next(tmp_path):
    registry = Registry(2, 3, tmp_path / "book")
    nodes = [Node(number, f"key {number}") for number in range(2)]
    registry.meet(nodes)
    registry.claim(nodes[0], 0, 10)
    registry.open_round(0)
    registry.claim(nodes[1], 1, 10)
    again = Registry(2, 3, tmp_path / "book")
    again.meet(nodes)
    for round_ in (0, 1):
        again.open_round(round_)
        assert again.calendar.members(round_).tolist() == [True, round_ == 1]
