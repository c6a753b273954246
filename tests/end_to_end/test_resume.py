"""Runs that are stopped, by whatever means, go on as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from fleets import IRREGULAR
from stopping import StopAt

from efl import Fleet, UserError, load, resume, train
from efl.runs.checkpoint import list_checkpoints
from efl.runs.directory import RunDirectory
from efl.storage import read_state

SETTINGS = {"rounds": 60, "cohort": 5, "local_steps": 5, "evaluate_every": 20}


def comparable(directory):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in RunDirectory.open(directory).history()]


@pytest.fixture(scope="module", params=["efl", "fedavg"])
def never_stopped(request, tmp_path_factory):
    algorithm, out = request.param, tmp_path_factory.mktemp(request.param) / "run"
    return algorithm, train(algorithm=algorithm, out=out, fleet=IRREGULAR, **SETTINGS).summary, out


@pytest.mark.parametrize("stop", [0, 9, 10, 27, 58])
def test_a_stopped_run_ends_like_one_never_stopped(tmp_path, never_stopped, stop):
    algorithm, whole, whole_directory = never_stopped
    with pytest.raises(KeyboardInterrupt):
        train(algorithm=algorithm, out=tmp_path / "stopped", callbacks=[StopAt(stop)], fleet=IRREGULAR, **SETTINGS)
    went_on = resume(tmp_path / "stopped")
    assert went_on.summary["model_sha256"] == whole["model_sha256"]
    assert comparable(tmp_path / "stopped") == comparable(whole_directory)
    for key in ("bmta_global", "bmta_local", "bytes_up", "bytes_down", "rounds"):
        assert went_on.summary[key] == whole[key]


@pytest.mark.parametrize("algorithm", ["efl", "fedavg"])
def test_a_run_stopped_with_uploads_in_flight_ends_with_the_same_model(tmp_path, algorithm):
    settings = {**SETTINGS, "rounds": 36, "cohort": 8, "buffer": 3, "track": {"checkpoint_every": 3}}
    fleet = Fleet(trace="phones", selection="available", deadline=150.0, inactive=0.1, lost=0.1)
    whole = train(algorithm=algorithm, out=tmp_path / "whole", fleet=fleet, **settings)
    assert max(record["staleness"] for record in whole.history if "staleness" in record) > 1
    for stop in (0, 7, 22):
        directory = tmp_path / f"stopped{stop}"
        with pytest.raises(KeyboardInterrupt):
            train(algorithm=algorithm, out=directory, callbacks=[StopAt(stop)], fleet=fleet, **settings)
        if stop:
            newest = read_state(list_checkpoints(directory / "checkpoint")[-1])
            assert len(newest["transport"]["in_flight"]["numbers"]) > 0
            assert newest["server"]["at_work"]
        assert resume(directory).summary["model_sha256"] == whole.summary["model_sha256"]
        assert comparable(directory) == comparable(tmp_path / "whole")


def test_killed_at_random_moments_it_ends_with_the_same_model(tmp_path):
    command = [sys.executable, "-m", "efl"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = [f"--set=training.{key}={value}" for key, value in SETTINGS.items()] + [
        "--set=track.checkpoint_every=3",
        "-q",
    ]
    options += ["--set=training.rounds=50"]
    subprocess.run([*command, "run", *options, "--out", "whole"], cwd=tmp_path, env=environment, check=True)
    expected = json.loads((tmp_path / "whole/summary.json").read_text())["model_sha256"]

    metrics = tmp_path / "killed/metrics.jsonl"
    rng = random.Random(0)
    process = subprocess.Popen([*command, "run", *options, "--out", "killed"], cwd=tmp_path, env=environment)
    kills = 0
    for goal in (3, 25):
        while process.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < goal):
            time.sleep(0.005)
        time.sleep(rng.random() * 0.05)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        process = subprocess.Popen([*command, "resume", "killed", "-q"], cwd=tmp_path, env=environment)
    assert process.wait() == 0
    assert kills == 2
    assert json.loads((tmp_path / "killed/summary.json").read_text())["model_sha256"] == expected


@pytest.fixture
def stopped(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "run", callbacks=[StopAt(25)], fleet=IRREGULAR, **SETTINGS)
    return tmp_path / "run"


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "noise"])
def test_a_damaged_checkpoint_is_named_and_nothing_is_lost(stopped, damage):
    newest = list_checkpoints(stopped / "checkpoint")[-1]
    data = bytearray(newest.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    broken = {"flip": data, "cut": data[:-100], "empty": b"", "noise": os.urandom(500)}[damage]
    newest.write_bytes(broken)
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"round-000020.safetensors: damaged.*delete it to resume from round-000010"):
        resume(stopped)
    assert before == {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    newest.unlink()
    assert resume(stopped).summary["rounds"] == 60


def test_a_half_written_last_line_of_metrics_is_no_obstacle(stopped):
    with open(stopped / "metrics.jsonl", "a") as file:
        file.write('{"round": 26, "eta"')
    assert resume(stopped).summary["rounds"] == 60


def test_metrics_that_lack_rounds_are_named(stopped):
    (stopped / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="damaged, it has 0 of 20 rounds"):
        resume(stopped)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    done = train(out=tmp_path / "run", fleet=IRREGULAR, **SETTINGS)
    again = resume(tmp_path / "run")
    assert again.summary["model_sha256"] == done.summary["model_sha256"]
    assert again.summary["bmta_local"] == done.summary["bmta_local"]


def test_ones_own_objects_must_be_passed_again(tmp_path, digits):
    with pytest.raises(KeyboardInterrupt):
        train(digits, "linear", out=tmp_path / "run", callbacks=[StopAt(25)], fleet=IRREGULAR, **SETTINGS)
    whole = train(digits, "linear", out=tmp_path / "whole", fleet=IRREGULAR, **SETTINGS)
    with pytest.raises(UserError, match="data of your own"):
        resume(tmp_path / "run")
    assert resume(tmp_path / "run", federation=digits).summary["model_sha256"] == whole.summary["model_sha256"]


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a run directory"):
        resume(tmp_path)


def test_a_run_does_not_go_on_with_other_data(tmp_path, digits):
    train(digits, "linear", rounds=2, cohort=3, local_steps=2, out=tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 4"))
    (tmp_path / "run" / "summary.json").unlink()
    other = load("digits", clients=20, partition="classes:2", seed=1)
    with pytest.raises(UserError, match="other data than those at hand"):
        resume(tmp_path / "run", federation=other)
    assert resume(tmp_path / "run", federation=digits).summary["rounds"] == 4
