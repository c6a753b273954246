"""Callbacks: when they are called, how they end a run, and what a resumed run makes of them."""

import csv
import json
import os
import pickle
import re
import signal
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from stopping import StopAt

import efl
from efl.errors import UserError
from efl.runs.checkpoint import list_checkpoints
from efl.server.coordinator import Coordinator
from efl.training.tasks import Objective

SETTINGS = {"cohort": 4, "local_steps": 3, "evaluate_every": 1, "evaluate_personalised_every": "never"}
UP_AND_DOWN = {"learning_rate": 2.0, "schedule": "constant", "seed": 3}  # accuracy that comes and goes


class Calls(efl.Callback):
    def __init__(self):
        self.calls = []

    def start(self, setup, history):
        self.calls.append(("start", len(history), self.run.setup is setup))

    def round(self, record):
        self.calls.append(("round", record["round"], self.run.history[-1] is record))

    def end(self, summary):
        self.calls.append(("end", summary["rounds"]))

    def close(self):
        self.calls.append("close")


def test_hooks_are_called_in_order(digits):
    calls = Calls()
    efl.train(digits, "linear", rounds=2, callbacks=[calls, efl.Callback()], **SETTINGS)
    assert calls.calls == [("start", 0, True), ("round", 0, True), ("round", 1, True), ("end", 2), "close"]


def test_a_callback_is_closed_also_after_an_error(digits):
    calls = Calls()
    with pytest.raises(KeyboardInterrupt):
        efl.train(digits, "linear", rounds=3, callbacks=[calls, StopAt(0)], **SETTINGS)
    assert calls.calls == [("start", 0, True), ("round", 0, True), "close"]


@pytest.mark.parametrize(
    ("metric", "mode", "values", "patience", "stops"),
    [
        ("accuracy", "auto", [0.1, 0.2, 0.2, 0.1, 0.3], 2, 3),
        ("accuracy", "auto", [0.1, None, 0.1, None, 0.1], 2, 4),  # rounds without an evaluation do not count
        ("train_loss", "auto", [3.0, 2.0, 2.5, 1.0, 1.0], 1, 2),
        ("score", "min", [3.0, 2.0, 2.0], 1, 2),
        ("accuracy", "auto", [0.1, 0.2, 0.3], 1, None),
    ],
)
def test_early_stopping_counts_evaluations_without_a_better_value(metric, mode, values, patience, stops):
    stop = efl.EarlyStopping(metric, patience, mode=mode)
    stop.start(SimpleNamespace(objective=Objective.of()), [])
    records = [{"round": n} | ({} if value is None else {metric: value}) for n, value in enumerate(values)]
    stopped = [n for n, record in enumerate(records) if stop.round(record)]
    assert stopped[:1] == ([] if stops is None else [stops])


def test_a_run_that_was_stopped_stays_stopped(digits, tmp_path):
    stop = efl.EarlyStopping(patience=2)
    first = efl.train(digits, "linear", rounds=60, out=tmp_path / "run", callbacks=[stop], **SETTINGS, **UP_AND_DOWN)
    assert first.summary["stopped"] == "EarlyStopping"
    assert 2 < first.summary["rounds"] < 60
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == "EarlyStopping"
    again = efl.resume(tmp_path / "run", federation=digits)  # without the callback
    assert again.summary["model_sha256"] == first.summary["model_sha256"]
    assert again.history == first.history
    assert "stopped by EarlyStopping" in repr(again)


@pytest.mark.parametrize("at", [3, 12])
def test_a_resumed_run_is_stopped_and_its_best_model_kept_as_in_a_run_never_interrupted(digits, tmp_path, at):
    def callbacks():
        return [efl.EarlyStopping(patience=6), efl.BestCheckpoint(), efl.CSVFile()]

    settings = {"rounds": 60, **SETTINGS, **UP_AND_DOWN}
    whole = efl.train(digits, "linear", out=tmp_path / "whole", callbacks=callbacks(), **settings)
    assert whole.summary["rounds"] > at + 1
    with suppress(KeyboardInterrupt):
        efl.train(digits, "linear", out=tmp_path / "parts", callbacks=[*callbacks(), StopAt(at)], **settings)
    resumed = efl.resume(tmp_path / "parts", callbacks(), federation=digits)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    best = [(tmp_path / name / "best.safetensors").read_bytes() for name in ("whole", "parts")]
    assert best[0] == best[1] != (tmp_path / "whole" / "model.safetensors").read_bytes()
    tables = [list(csv.DictReader((tmp_path / name / "metrics.csv").open())) for name in ("whole", "parts")]
    for table in tables:
        assert [int(row["round"]) for row in table] == list(range(whole.summary["rounds"]))
    assert [row["accuracy"] for row in tables[0]] == [row["accuracy"] for row in tables[1]]


# On the way out

LEFT = {"rounds": 8, "cohort": 4, "local_steps": 3, "evaluate_every": 2, "evaluate_personalised_every": 4}


class FailsAt(efl.Callback):
    def __init__(self, round_):
        self.at, self.seen = round_, []

    def round(self, record):
        self.seen.append(record["round"])
        if record["round"] == self.at:
            raise RuntimeError("mine")


def left(directory):
    return [path.stem for path in list_checkpoints(directory / "checkpoint")]


def comparable(result):
    history = [{key: value for key, value in record.items() if key != "seconds"} for record in result.history]
    return result.summary["model_sha256"], result.summary["bmta_local"], history


@pytest.mark.parametrize("algorithm", ["efl", "apfl"])
@pytest.mark.parametrize("at", [2, 3, 7])
def test_after_an_error_in_a_callback_no_round_is_done_again(digits, tmp_path, algorithm, at):
    fleet, best = efl.Fleet(stragglers=0.3, lost=0.2), [efl.BestCheckpoint(mode="min")]  # behind the one that fails
    whole = efl.train(digits, "linear", algorithm, fleet, out=tmp_path / "whole", callbacks=best, **LEFT)
    with pytest.raises(RuntimeError, match="mine"):
        efl.train(digits, "linear", algorithm, fleet, out=tmp_path / "run", callbacks=[FailsAt(at), *best], **LEFT)
    assert left(tmp_path / "run")[-1] == f"round-{at + 1:06d}"
    watch = FailsAt(None)
    again = efl.resume(tmp_path / "run", [watch, *best], federation=digits)
    assert comparable(again) == comparable(whole)
    assert watch.seen == list(range(at, 8))  # the round that was not seen to its end, and those after it
    assert (tmp_path / "run/best.safetensors").read_bytes() == (tmp_path / "whole/best.safetensors").read_bytes()


def test_after_an_error_in_a_metric_it_is_computed_once_resumed(digits, tmp_path):
    broken = []

    class Break(efl.Callback):
        def round(self, record):
            broken.extend([True] * (record["round"] == 4))

    def score(outputs, targets):
        if broken:
            raise RuntimeError("mine")
        return outputs.float().mean()

    settings = {"metrics": {"score": score}, "engine": {"workers": 1}, **LEFT}
    whole = efl.train(digits, "linear", out=tmp_path / "whole", **settings)
    with pytest.raises(Exception, match="mine"):
        efl.train(digits, "linear", out=tmp_path / "run", callbacks=[Break()], **settings)
    assert left(tmp_path / "run") == ["round-000006"]
    broken.clear()
    again = efl.resume(tmp_path / "run", federation=digits, metrics=settings["metrics"])
    assert comparable(again) == comparable(whole)


def test_the_state_in_the_midst_of_a_round_is_not_saved(digits, tmp_path, monkeypatch):
    whole, aggregate = efl.train(digits, "linear", out=tmp_path / "whole", **LEFT), Coordinator._aggregate

    def fails(self, counted, cohort, settings):
        if settings.round == 5:
            raise RuntimeError("mine")
        return aggregate(self, counted, cohort, settings)

    monkeypatch.setattr(Coordinator, "_aggregate", fails)
    with pytest.raises(RuntimeError, match="mine"):
        efl.train(digits, "linear", out=tmp_path / "run", track={"checkpoint_every": 3}, **LEFT)
    monkeypatch.undo()
    assert left(tmp_path / "run") == ["round-000003"]
    assert comparable(efl.resume(tmp_path / "run", federation=digits)) == comparable(whole)


@pytest.mark.parametrize(("times", "saved"), [(1, ["round-000006"]), (2, [])])
def test_ctrl_c_waits_for_the_round_to_end_and_a_second_one_does_not(digits, tmp_path, monkeypatch, times, saved):
    whole, aggregate = efl.train(digits, "linear", out=tmp_path / "whole", **LEFT), Coordinator._aggregate

    def interrupted(self, counted, cohort, settings):
        for _ in range(times if settings.round == 5 else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return aggregate(self, counted, cohort, settings)

    monkeypatch.setattr(Coordinator, "_aggregate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        efl.train(digits, "linear", out=tmp_path / "run", **LEFT)
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert left(tmp_path / "run") == saved
    assert comparable(efl.resume(tmp_path / "run", federation=digits)) == comparable(whole)


def test_figures_that_come_later_get_a_column(digits, tmp_path):
    efl.train(
        digits, "linear", rounds=4, callbacks=[efl.CSVFile(tmp_path / "new" / "x.csv")], cohort=4, evaluate_every=2
    )
    rows = list(csv.DictReader((tmp_path / "new" / "x.csv").open()))
    assert [bool(row["accuracy"]) for row in rows] == [False, True, False, True]
    assert all(float(row["bytes.up.update"]) > 0 for row in rows)
    assert "asked" not in rows[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: efl.EarlyStopping("acuracy"), "EarlyStopping: no round has 'acuracy'; did you mean 'accuracy'?"),
        (lambda: efl.EarlyStopping("nothing"), "EarlyStopping: no round has 'nothing'; they have accuracy, "),
        (lambda: efl.BestCheckpoint("best", "acc"), "BestCheckpoint: no round has 'acc'; "),
    ],
)
def test_a_metric_that_nobody_reports_is_refused_at_the_first_evaluation(digits, tmp_path, monkeypatch, make, message):
    monkeypatch.chdir(tmp_path)
    seen = FailsAt(None)
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        efl.train(digits, "linear", rounds=9, callbacks=[seen, make()], **{**SETTINGS, "evaluate_every": 2})
    assert seen.seen == [0, 1]


def test_a_metric_that_was_not_evaluated_costs_a_warning_and_not_the_result(digits, caplog):
    stop = efl.EarlyStopping("personalised_accuracy")
    assert efl.train(digits, "linear", rounds=2, callbacks=[stop], **SETTINGS).summary["rounds"] == 2
    assert "EarlyStopping: no round has 'personalised_accuracy'; they have accuracy, " in caplog.text


def test_a_mode_must_be_one_of_three():
    with pytest.raises(UserError, match=r"^EarlyStopping: mode must be one of auto, max, min, got 'lower'$"):
        efl.EarlyStopping(mode="lower")


@pytest.mark.parametrize("make", [efl.BestCheckpoint, efl.CSVFile])
def test_callbacks_that_write_need_a_place(digits, make):
    with pytest.raises(UserError, match=r"train with out=…"):
        efl.train(digits, "linear", rounds=1, callbacks=[make()], **SETTINGS)


# Results


def test_a_personalised_model_does_not_depend_on_workers_and_is_there_after_resuming(digits, tmp_path):
    settings = {"rounds": 12, "cohort": 4, "local_steps": 3}
    alone = efl.train(digits, "linear", "apfl", out=tmp_path / "run", engine={"workers": 1}, **settings)
    beside = efl.train(digits, "linear", "apfl", engine={"workers": 2}, **settings)
    resumed = efl.resume(tmp_path / "run", federation=digits)
    states = [result.personalised(7).state_dict() for result in (alone, beside, resumed, alone)]
    for state in states[1:]:
        assert all(torch.equal(state[name], tensor) for name, tensor in states[0].items())
    other = alone.personalised(8).state_dict()
    assert not torch.equal(other["1.weight"], states[0]["1.weight"])


def test_personalised_models_of_nobody(digits):
    result = efl.train(digits, "linear", rounds=1, **SETTINGS)
    with pytest.raises(UserError, match="there is no client 20; clients are 0 … 19"):
        result.personalised(20)
    with pytest.raises(UserError, match="there is no client 'a'; clients are 0 … 19"):
        result.personalised("a")
    with pytest.raises(UserError, match="lost its clients"):
        pickle.loads(pickle.dumps(result)).personalised(0)


def test_a_model_of_ones_own_is_loaded_into_a_copy(digits, tmp_path):
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 10)
    )
    before = module[1].weight.clone()
    trained = efl.train(digits, module, rounds=2, out=tmp_path / "run", **SETTINGS).model
    with pytest.raises(UserError, match="a run with a model of your own; pass one of the same kind"):
        efl.load_model(tmp_path / "run")
    found = efl.load_model(tmp_path / "run", module)
    assert not found.training
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in found.state_dict().items())
    assert torch.equal(module[1].weight, before)
    with pytest.raises(
        UserError, match=r"model.safetensors: not the weights of this model: they have a tensor 1\.bias "
    ):
        efl.load_model(tmp_path / "run", torch.nn.Linear(3, 3))
    module[3] = torch.nn.Linear(16, 11)
    with pytest.raises(
        UserError, match=r"3\.bias has shape \(10,\), that of the model \(11,\); pass a module of the kind"
    ):
        efl.load_model(tmp_path / "run", module)
    module[3] = torch.nn.Linear(16, 10)
    module.append(torch.nn.Linear(10, 2, bias=False))
    with pytest.raises(UserError, match=r"they lack 4\.weight \(2, 10\)"):
        efl.load_model(tmp_path / "run", module)
    with pytest.raises(UserError, match="no such file"):
        efl.load_model(tmp_path / "nothing")


def test_progress_is_shown_where_asked_for(digits, capsys):
    efl.train(digits, "linear", rounds=2, progress=True, **SETTINGS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("efl on digits, 20 clients")
    assert lines[-1].startswith("round 2/2")
    efl.train(digits, "linear", rounds=2, **SETTINGS)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("track", ["seen", ["seen"], {"trackers": ["seen"], "checkpoint_every": 1}])
def test_trackers_by_name(digits, tmp_path, track):
    calls = []

    class Seen(efl.Callback):
        def __init__(self, directory):
            calls.append(directory)

        def round(self, record):
            calls.append(record["round"])

    from efl.track.trackers import TRACKERS

    TRACKERS.register("seen", Seen)
    try:
        efl.train(digits, "linear", rounds=2, track=track, out=tmp_path / "run", **SETTINGS)
        assert calls == [tmp_path / "run", 0, 1]
    finally:
        del TRACKERS._things["seen"]


def test_the_engine_is_checked(digits):
    with pytest.raises(UserError, match=r"unknown key engine.num_workers; did you mean engine.workers\?"):
        efl.train(digits, engine={"num_workers": 2})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": lambda x: x}, "model: pass an nn.Module, or a network's name, not a function"),
        ({"model": torch.nn.Linear}, "model: pass Linear(…), a module, not the class Linear"),
        ({"fleet": {"stragglers": 0.5}}, "fleet: pass efl.Fleet(stragglers=0.5), not a dict"),
        ({"fleet": efl.Fleet}, "fleet: pass efl.Fleet(…), not the class"),
        (
            {"federation": (torch.rand(9, 2), torch.zeros(9))},
            "federation: pass efl.Federation.from_tensors(x, y, clients=…), or the name of a data set, not a tuple",
        ),
        (
            {"federation": torch.utils.data.TensorDataset(torch.rand(9, 2))},
            "federation: pass efl.Federation.from_dataset(dataset, clients=…), not a TensorDataset",
        ),
        ({"federation": []}, "federation: pass efl.Federation.from_clients([(x, y), …]) or "),
        ({"callbacks": efl.EarlyStopping()}, "callbacks: pass a list of them, callbacks=[…], not an EarlyStopping"),
        (
            {"callbacks": [efl.EarlyStopping]},
            "callbacks: pass EarlyStopping(…), an object, not the class EarlyStopping",
        ),
        ({"callbacks": [lambda record: None]}, "callbacks: a function is none; derive a class from efl.Callback"),
    ],
)
def test_what_is_of_another_kind_is_refused_with_what_to_write(given, message, tmp_path):
    with pytest.raises(UserError) as refused:
        efl.train(**given, rounds=1, out=tmp_path / "run")
    assert str(refused.value).startswith(message)
    assert not (tmp_path / "run").exists()
