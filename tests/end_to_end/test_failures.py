"""What the machine does to a run: another process, a full disk, no permission, no memory. One line, and it goes on."""

import errno
import json
import os
import subprocess
import sys
import time

import pytest
from stopping import StopAt

from efl import UserError, resume, train
from efl.bench.kills import kill_runs
from efl.cli import main
from efl.client.state_store import RowsFile
from efl.runs.directory import RunDirectory

SETTINGS = {"rounds": 6, "cohort": 3, "local_steps": 2, "evaluate_every": 3, "evaluate_personalised_every": "never"}
OPTIONS = {"model": "linear", "engine": {"workers": 1}, "track": {"checkpoint_every": 2}}
SMALL = [f"--set=training.{key}={value}" for key, value in SETTINGS.items()]
SMALL += [
    "--set=fleet.stragglers=0",
    "--set=fleet.inactive=0",
    "--set=model.name=linear",
    "--set=engine.workers=1",
    "--set=track.checkpoint_every=2",
]


@pytest.fixture
def efl(monkeypatch, tmp_path, capsys):
    """Run the command in an empty folder; returns exit code and error text."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["efl", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, capsys.readouterr().err

    return call


@pytest.fixture(scope="module")
def expected():
    return train(**SETTINGS, **OPTIONS).summary["model_sha256"]


@pytest.fixture
def stopped(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "run", callbacks=[StopAt(3)], **SETTINGS, **OPTIONS)
    return tmp_path / "run"


def test_a_run_has_one_process_also_after_its_config_was_replaced(stopped, expected):
    config = stopped / "config.toml"
    with RunDirectory.open(stopped).in_use():
        for replace in (False, True):
            if replace:  # as editors save
                config.with_suffix(".new").write_text(config.read_text())
                os.replace(config.with_suffix(".new"), config)
            with pytest.raises(UserError, match="another process is at work on this run"):
                resume(stopped)
    assert resume(stopped).summary["model_sha256"] == expected


def test_a_lock_is_let_go_by_a_process_that_is_killed(stopped):
    code = "import sys, time; from efl.runs.directory import RunDirectory\n"
    code += "with RunDirectory.open(sys.argv[1]).in_use(): print('mine', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(stopped)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "mine\n"
    directory = RunDirectory.open(stopped)
    with pytest.raises(UserError, match="another process"), directory.in_use(patience=0.3):
        pass
    holder.kill()
    began = time.monotonic()
    with directory.in_use(patience=5.0):
        assert time.monotonic() - began < 5
    holder.wait()


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("elasticity = 0.3", "elasticity = 0.4", "algorithm.elasticity was 0.3 when the run was started, and is 0.4"),
        ("[algorithm]\n", "[algorithm]\nstep_up = 0.5\n", "algorithm.step_up was not set when the run was started"),
        ("local_steps = 2", "local_steps = 3", "training.local_steps was 2 when the run was started, and is 3"),
        ("seed = 0", "seed = 1", "training.seed was 0"),
        ('optimiser = "sgd"', 'optimiser = {name = "sgd", momentum = 0.9}', "training.optimiser was 'sgd'"),
        ("[fleet]\n", "[fleet]\ntrace = 'phones'\n", "fleet.trace was not set"),
        ("stragglers = 0.0", "stragglers = 0.5", "fleet.stragglers was 0.0"),
        ("[engine]\n", "[codec]\nname = 'eight_bit'\n[engine]\n", "codec.name was not set"),
        ("[algorithm]\n", "[[transform]]\nname = 'clip_by_norm'\n[algorithm]\n", "transform was []"),
    ],
)
def test_settings_that_were_edited_are_named(stopped, before, after, line):
    config = stopped / "config.toml"
    text = config.read_text()
    assert before in text
    config.write_text(text.replace("[codec]\n", "").replace(before, after))
    with pytest.raises(UserError) as error:
        resume(stopped)
    assert line in str(error.value)
    config.write_text(text)
    assert resume(stopped).summary["rounds"] == 6


def test_densities_that_were_edited_are_named(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(algorithm="efl:2021", out=tmp_path / "run", callbacks=[StopAt(3)], **SETTINGS, **OPTIONS)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("density_up = 0.01", "density_up = 0.02"))
    with pytest.raises(UserError, match=r"density_up was 0.01 when the run was started, and is 0.02"):
        resume(tmp_path / "run")


def test_how_long_and_how_a_run_is_computed_may_change(stopped):
    config = stopped / "config.toml"
    text = config.read_text().replace("rounds = 6", "rounds = 7").replace("workers = 1", "workers = 2")
    config.write_text(text.replace("checkpoint_every = 2", "checkpoint_every = 3"))
    assert resume(stopped).summary["rounds"] == 7


def no_room(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file")


@pytest.mark.parametrize("what", ["checkpoint", "metrics", "rows"])
def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(efl, tmp_path, monkeypatch, expected, what):
    writers = {"checkpoint": "efl.runs.checkpoint.write_state", "rows": "os.pwritev"}
    writers["metrics"] = "efl.runs.directory.MetricsFile.append"
    with monkeypatch.context() as full:
        full.setattr(writers[what], no_room)
        code, err = efl("run", *SMALL, "--out=run", "-q")
    assert code == 3
    assert "efl: a file: No space left on device; make room; go on with: efl resume run" in err
    assert "Traceback" not in err
    assert efl("resume", "run", "-q")[0] == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["model_sha256"] == expected


def test_rows_that_were_written_in_part_are_noticed(tmp_path, monkeypatch):
    import torch

    file = RowsFile({"a": 1000}, tmp_path / "rows")
    real = os.pwritev
    sizes = iter([1000, 500, 0])
    monkeypatch.setattr("os.pwritev", lambda fd, parts, at: real(fd, [parts[0][: next(sizes)]], at))
    with pytest.raises(OSError, match="No space left"):
        file.write(0, [torch.ones(1000)])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "not enough memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            "not enough memory",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), "runs: Permission denied; see to permissions"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files; allow more open files"),
        (RuntimeError("unable to resize file </torch_1>: No space left on device (28)"), "(28); make room"),
        (OSError("strange"), "strange"),
    ],
)
def test_other_failures_of_the_machine_are_one_line(efl, monkeypatch, error, line):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("efl.api.run", fail)
    code, err = efl("run", *SMALL, "--out=run", "-q")
    assert code == 3
    assert line in err
    assert "efl resume" not in err  # there is no run yet
    assert err.count("\n") == 1


def test_a_mistake_in_the_program_keeps_its_traceback(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a mistake")

    monkeypatch.setattr("efl.api.run", fail)
    monkeypatch.setattr("sys.argv", ["efl", "run", "--out=run"])
    with pytest.raises(RuntimeError, match="a mistake"):
        main()


@pytest.mark.parametrize("output", ["/dev/full", "a pipe that nobody reads from"])
def test_a_run_goes_on_when_nobody_can_read_what_it_prints(tmp_path, expected, output):
    command = [sys.executable, "-m", "efl", "run", *SMALL, "--out", str(tmp_path / "run")]
    if output == "/dev/full":
        with open(output, "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    else:
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writing)
    assert done.returncode == 3
    assert done.stderr.startswith("efl: standard output: ")
    assert done.stderr.count("\n") == 1
    assert json.loads((tmp_path / "run/summary.json").read_text())["model_sha256"] == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [("training.batch_size", 2**63 - 1), ("training.local_steps", 2**64), ("algorithm.weight_cap", "1e308")],
)
def test_settings_have_upper_limits(efl, tmp_path, key, value):
    code, err = efl("run", f"--set={key}={value}", "--out=run")
    assert code == 2
    assert key in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_few_kills():
    """`efl bench kills` makes two hundred."""
    outcome = kill_runs(6, seed=1)
    assert outcome.passed, str(outcome)
    assert outcome.kills.total() == 6
    assert "every one ended with the same model and records" in str(outcome)


def test_a_run_that_ends_with_another_model_is_noticed(monkeypatch):
    monkeypatch.setattr("efl.bench.kills._result", lambda path: (path.name, []))
    outcome = kill_runs(1)
    assert not outcome.passed
    assert "ended with another model" in str(outcome)
