"""Trackers, each with its own library and read back with it."""

import logging

import pytest
from stopping import StopAt

import efl
from efl.config import parse
from efl.errors import UserError
from efl.track import trackers as module
from efl.track.trackers import Forgiven, trackers

ROUNDS = 6


def experiment(**track):
    return parse(
        {
            "federation": {"clients": 10},
            "training": {"rounds": ROUNDS, "cohort": 3, "local_steps": 2, "evaluate_every": 3},
            "track": {"checkpoint_every": 2, **track},
        }
    )


def play_with_a_break(out, **track):
    """A run that is stopped after round 3, resumed after round 2, its last checkpoint; returns its history."""
    with pytest.raises(KeyboardInterrupt):
        efl.run(experiment(**track), out, [StopAt(2)])
    return efl.resume(out).history


def expected(history, name):
    return [(record["round"] + 1, pytest.approx(record[name])) for record in history if name in record]


def test_tensorboard_has_every_round_once_also_after_a_break(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    history = play_with_a_break(tmp_path / "run", tensorboard=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for name in ("train_loss", "accuracy", "bytes_up"):
        told = [(event.step, event.value) for event in events.Scalars(name)]
        assert told == expected(history, name)
    assert "bytes/up/update" in events.Tags()["scalars"]


def test_mlflow_has_every_round_once_also_after_a_break(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    history = play_with_a_break(tmp_path / "run", mlflow=True)
    (run,) = mlflow.search_runs(experiment_names=["elastic-fl"], output_format="list")
    assert run.info.status == "FINISHED"
    assert run.data.params["training.rounds"] == str(ROUNDS)
    for name in ("train_loss", "accuracy"):
        told = mlflow.MlflowClient().get_metric_history(run.info.run_id, name)
        assert sorted((metric.step, metric.value) for metric in told) == expected(history, name)
    assert "summary/bmta_global" in run.data.metrics


def test_wandb_has_the_run_under_one_name_also_after_a_break(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    play_with_a_break(tmp_path / "run", wandb=True)
    parts = list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert len(parts) == 2
    assert len({part.name.split("-")[-1] for part in parts}) == 1


def test_a_missing_library_is_one_line_before_anything_is_played(tmp_path, monkeypatch):
    def missing(directory):
        raise ModuleNotFoundError("No module named 'wandb'")

    monkeypatch.setattr(module.TRACKERS, "get", lambda name: missing)
    with pytest.raises(UserError, match=r"track.wandb: No module named 'wandb'; pip install 'elastic-fl\[trackers\]'"):
        efl.run(experiment(wandb=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracked_run_needs_a_directory():
    with pytest.raises(UserError, match="needs a directory"):
        efl.run(experiment(tensorboard=True))


def test_a_tracker_that_fails_does_not_stop_the_run(tmp_path, monkeypatch, caplog):
    class Broken(StopAt):
        def round(self, record):
            raise ConnectionError("the server does not answer\nand more")

    monkeypatch.setattr(module.TRACKERS, "get", lambda name: lambda directory: Broken(0))
    with caplog.at_level(logging.WARNING, "efl"):
        result = efl.run(experiment(mlflow=True), tmp_path / "run")
    assert result.summary["rounds"] == ROUNDS
    assert caplog.messages == ["mlflow failed and is given nothing more: the server does not answer"]


def test_only_those_asked_for(tmp_path):
    assert trackers(experiment().track, tmp_path) == []
    (one,) = trackers(experiment(tensorboard=True).track, tmp_path)
    assert isinstance(one, Forgiven)
