"""Privacy on a network: noise and cohorts are the server's secret, and nothing is shown before it is kept."""

import pytest

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from grids import CONFIG, load_data, make_model, served

from efl.errors import UserError
from efl.flower.client import Node
from efl.flower.config import experiment_of
from efl.runs.loop import Run

PRIVATE = {
    "training.rounds": 3,
    "fleet.selection": "poisson",
    "transform.privacy.epsilon": 60.0,
    "transform.privacy.noise_multiplier": 1.0,
}


def test_a_private_run_draws_other_noise_every_time_and_says_what_it_cost(tmp_path):
    models = set()
    for name in "ab":
        run, _, _ = served(tmp_path / name, PRIVATE)
        summary = run.execute().summary
        models.add(summary["model_sha256"])
        assert 0 < summary["epsilon"] <= 60.0
    assert len(models) == 2


def test_a_round_is_kept_before_clients_see_its_model(tmp_path, monkeypatch):
    run, _, _ = served(tmp_path, PRIVATE)
    order = []
    keep, look = Run._checkpoint, type(run.evaluator).evaluate
    monkeypatch.setattr(Run, "_checkpoint", lambda *a: order.append("kept") or keep(*a))
    monkeypatch.setattr(type(run.evaluator), "evaluate", lambda *a: order.append("shown") or look(*a))
    run.execute()
    assert "shown" in order
    assert all(order[i - 1] == "kept" for i, what in enumerate(order) if what == "shown")


def test_a_node_needs_no_accountant(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting.pld", None)
    config = {**CONFIG, **PRIVATE, "transform.privacy.epsilon": 3.0}
    del config["transform.privacy.noise_multiplier"]
    node = Node(make_model, load_data, {"partition-id": 0}, experiment_of(config))
    assert node.setup.algorithm.transforms[-1].norm == 1.0


def test_other_sampling_is_refused(tmp_path):
    with pytest.raises(UserError, match="poisson"):
        served(tmp_path, {**PRIVATE, "fleet.selection": "uniform"})
