"""A damaged run directory is refused in one line, or the run ends with the model it would have had."""

import json
import shutil

import numpy as np
import pytest
import torch
from damages import EVERY, VALUES, damage, outcome
from safetensors.torch import load_file, save_file
from stopping import StopAt

from efl import UserError, load_model, resume, train
from efl.client.state_store import PAGE
from efl.config import parse
from efl.runs.checkpoint import list_checkpoints
from efl.runs.directory import RunDirectory
from efl.runs.settings_compared import FREE
from efl.settings import read_toml
from efl.track.figures import byte_stacks, curve_panels, participation
from efl.track.tables import comparison_rows, summary_rows

SETTINGS = {"rounds": 6, "cohort": 3, "local_steps": 2, "evaluate_every": 3, "evaluate_personalised_every": "never"}
OPTIONS = {"model": "linear", "engine": {"workers": 1}, "track": {"checkpoint_every": 2}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run that was stopped after round 4, one that was not."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.raises(KeyboardInterrupt):
        train(out=folder / "stopped", callbacks=[StopAt(4)], **SETTINGS, **OPTIONS)
    train(out=folder / "whole", **SETTINGS, **OPTIONS)
    return folder


@pytest.fixture
def stopped(runs, tmp_path):
    return shutil.copytree(runs / "stopped", tmp_path / "run")


@pytest.fixture
def whole(runs, tmp_path):
    return shutil.copytree(runs / "whole", tmp_path / "run")


def end_of(path):
    return resume(path).summary["model_sha256"]


def expected(runs):
    return RunDirectory.open(runs / "whole").read_summary()["model_sha256"]


def only_what_may_change(path, runs):
    """Whether a config still says the same, but for keys that may be changed between stop and resume."""
    tables = [read_toml(one / "config.toml") for one in (path, runs / "whole")]
    for table in tables:
        for key in FREE["training"]:
            table["training"].pop(key, None)
        for section in ("engine", "track", "network"):
            table.pop(section, None)
    return parse(tables[0]) == parse(tables[1])


@pytest.mark.parametrize("how", [how for how in EVERY if how != "directory"])
def test_config(runs, stopped, how):
    damage(stopped / "config.toml", how)
    found = outcome(lambda: end_of(stopped))
    assert found in (None, expected(runs)) or only_what_may_change(stopped, runs)


@pytest.mark.parametrize("how", EVERY)
def test_metrics(runs, stopped, how):
    damage(stopped / "metrics.jsonl", how)
    assert outcome(lambda: end_of(stopped)) in (None, expected(runs))


@pytest.mark.parametrize("how", EVERY)
def test_checkpoint(runs, stopped, how):
    damage(list_checkpoints(stopped / "checkpoint")[-1], how)
    assert outcome(lambda: end_of(stopped)) is None


@pytest.mark.parametrize("how", EVERY)
def test_rows(runs, stopped, how):
    damage(stopped / "checkpoint" / "clients.rows", how)
    assert outcome(lambda: end_of(stopped)) in (None, expected(runs))


@pytest.mark.parametrize("how", EVERY)
def test_lock(runs, stopped, how):
    (stopped / "lock").touch()
    damage(stopped / "lock", how)
    assert outcome(lambda: end_of(stopped)) in (None, expected(runs))


@pytest.mark.parametrize("how", ["gone", "a file", "a pipe of a checkpoint's name", "other files"])
def test_checkpoint_folder(runs, stopped, how):
    folder = stopped / "checkpoint"
    if how == "other files":
        (folder / "round-x.txt").write_text("mine")
    else:
        shutil.rmtree(folder)
    if how == "a file":
        folder.write_text("")
    if how == "a pipe of a checkpoint's name":
        folder.mkdir()
        (folder / "round-000009.safetensors").touch()
        damage(folder / "round-000009.safetensors", "pipe")
    assert outcome(lambda: end_of(stopped)) in (None, expected(runs))


def edited(path, change):
    """Write a checkpoint again with something in it changed."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        texts = file.metadata()
    tensors = load_file(path)
    change(texts, tensors)
    save_file(tensors, path, texts)


def in_note(name, before, after):
    def change(texts, tensors):
        assert before in texts[name]
        texts[name] = texts[name].replace(before, after)

    return change


def in_tensors(make):
    def change(texts, tensors):
        tensors |= {"server/w": make(tensors["server/w"])}

    return change


def without_a_tensor(texts, tensors):
    del tensors["server/buffers"]


CHANGES = {
    "rounds": in_note("values", '"rounds": 4', '"rounds": 2'),
    "format": in_note("notes", '"format": 6', '"format": 5'),
    "writer": in_note("notes", "elastic-fl", "another"),
    "settings": in_note("values", '"elasticity": 0.3', '"elasticity": 0.4'),
    "dtype": in_tensors(lambda w: w.view(dtype=torch.int32)),
    "shape": in_tensors(lambda w: w.view(10, -1)),
    "order": in_tensors(lambda w: w.flip(0)),
    "name": lambda texts, tensors: tensors.update({"server/v": tensors.pop("server/w")}),
    "tensor": without_a_tensor,
    "note more": lambda texts, tensors: texts.update(more="x"),
    "no notes": lambda texts, tensors: texts.clear(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_no_part_of_a_checkpoint_can_be_edited(stopped, what):
    edited(list_checkpoints(stopped / "checkpoint")[-1], CHANGES[what])
    with pytest.raises(UserError, match="damaged"):
        resume(stopped)


@pytest.mark.parametrize("what", ["words", "slots"])
def test_rows_whose_words_changed_places_are_noticed(stopped, what):
    path = stopped / "checkpoint" / "clients.rows"
    words = np.fromfile(path, np.uint32)
    if what == "words":  # the first hundred of every slot, in reverse: their sum stays what it was
        for start in range(0, len(words), PAGE // 4):
            words[start : start + 100] = words[start : start + 100][::-1].copy()
    else:
        words = np.roll(words, PAGE // 4 * (-(-4 * 2 * 650 // PAGE)))
    words.tofile(path)
    with pytest.raises(UserError, match="corrupt"):
        resume(stopped)


def read_finished(path):
    """What `efl resume` and `efl report` do with a finished run, but for drawing."""
    directory = RunDirectory.open(path)
    experiment, summary, history = directory.experiment(), directory.read_summary(), directory.history()
    curve_panels({"efl": [history]})
    participation(history, experiment.federation.clients, experiment.training.local_steps)
    byte_stacks(history)
    return (summary_rows(summary), comparison_rows({"efl": [summary]})) if summary else "unfinished"


@pytest.mark.parametrize("how", EVERY)
def test_summary(whole, how):
    damage(whole / "summary.json", how)
    outcome(lambda: read_finished(whole))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", ["rounds", "final_metrics", "model_sha256", "accuracy_over_bytes", "seconds"])
def test_values_in_a_summary(whole, key, value):
    path = whole / "summary.json"
    summary = json.loads(path.read_text()) | {key: "HERE"}
    path.write_text(json.dumps(summary).replace('"HERE"', VALUES[value]))
    outcome(lambda: read_finished(whole))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", ["round", "clients", "bytes", "accuracy", "train_loss", "aggregated"])
def test_values_in_metrics(whole, key, value):
    path = whole / "metrics.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[2]) | {key: "HERE"}
    path.write_text("\n".join([*lines[:2], json.dumps(record).replace('"HERE"', VALUES[value]), *lines[3:], ""]))
    outcome(lambda: read_finished(whole))


@pytest.mark.parametrize("how", EVERY)
def test_finished_metrics(whole, how):
    damage(whole / "metrics.jsonl", how)
    outcome(lambda: read_finished(whole))


def assert_refused_or_same(model, runs):
    if model is not None:
        same = load_model(runs / "whole").state_dict()
        assert all((model.state_dict()[name] == tensor).all() for name, tensor in same.items())


@pytest.mark.parametrize("how", EVERY)
def test_model(runs, whole, how):
    damage(whole / "model.safetensors", how)
    assert_refused_or_same(outcome(lambda: load_model(whole)), runs)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", ["input_shape", "classes", "vocabulary"])
def test_values_in_network(runs, whole, key, value):
    path = whole / "network.json"
    notes = json.loads(path.read_text()) | {key: "HERE"}
    path.write_text(json.dumps(notes).replace('"HERE"', VALUES[value]))
    found = outcome(lambda: load_model(whole))
    assert found is None or key == "vocabulary"


@pytest.mark.parametrize("how", EVERY)
def test_network(runs, whole, how):
    damage(whole / "network.json", how)
    assert_refused_or_same(outcome(lambda: load_model(whole)), runs)
