"""efl runs: which runs there are, how each stands, and in what they differ."""

import shutil

import pytest

from efl import train
from efl.cli import main
from efl.errors import UserError
from efl.runs.directory import RunDirectory
from efl.runs.listing import best_of_each, runs_below, standing


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two finished runs and one that was stopped."""
    path = tmp_path_factory.mktemp("work") / "runs"
    common = {"cohort": 5, "local_steps": 2, "evaluate_every": 1}
    train("digits", algorithm="fedavg", rounds=2, out=path / "a", **common)
    train("digits", algorithm="fedavg", rounds=3, seed=1, out=path / "cmp/b", **common)
    shutil.copytree(path / "a", path / "c")
    (path / "c/summary.json").unlink()
    return path


@pytest.fixture
def efl(monkeypatch, capsys, folder):
    def call(*arguments):
        monkeypatch.chdir(folder.parent)
        monkeypatch.setattr("sys.argv", ["efl", "runs", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out.splitlines(), captured.err

    return call


def test_an_unfinished_run_stands_as_its_records_say(folder):
    done, stopped = standing(RunDirectory(folder / "a")), standing(RunDirectory(folder / "c"))
    assert (done.state, stopped.state) == ("finished", "stopped")
    for name in ("rounds", "best", "bytes_up", "bytes_down", "metric", "share", "higher_is_better"):
        assert getattr(done, name) == getattr(stopped, name), name
    with stopped.directory.in_use():
        assert standing(stopped.directory).state == "running"


def test_a_damaged_run_is_listed(folder, tmp_path):
    shutil.copytree(folder / "a", tmp_path / "bad")
    (tmp_path / "bad/config.toml").write_text("[training]\nrounds = 'x'\n")
    found = standing(RunDirectory(tmp_path / "bad"))
    assert found.state == "damaged"
    assert found.trouble


def test_asking_for_a_lock_does_not_hold_up_a_run(folder):
    directory = RunDirectory(folder / "c")
    assert directory.is_in_use() is False
    with directory.in_use():
        assert directory.is_in_use() is True
        with pytest.raises(UserError, match="another process"), directory.in_use():
            pass


def test_the_list(efl):
    code, lines, _ = efl()
    assert code == 0
    assert lines[0].split()[:2] == ["run", "algorithm"]
    rows = {line.split()[0]: line.split() for line in lines[1:]}
    assert set(rows) == {"runs/a", "runs/cmp/b", "runs/c"}
    assert rows["runs/cmp/b"][1:5] == ["fedavg", "digits", "finished", "3/3"]
    assert rows["runs/c"][3] == "stopped"
    assert "%" in rows["runs/a"]


def test_the_best(efl, folder):
    found = [standing(run) for run in runs_below([folder])]
    (best,) = best_of_each(found)
    assert best.best == max(run.best for run in found)
    code, lines, _ = efl("--best")
    assert (code, len(lines)) == (0, 2)
    equal = [run.directory.path for run in found if run.best == best.best]
    assert folder.parent / lines[1].split()[0] in equal


def test_what_differs(efl):
    code, lines, _ = efl("diff", "runs/a", "runs/cmp/b")
    table = {line.split()[0]: line.split()[1:] for line in lines}
    assert code == 0
    assert table["training.rounds"] == ["2", "3"]
    assert table["training.seed"] == ["0", "1"]
    assert table["state"] == ["finished", "finished"]
    assert not any(key.startswith("algorithm") for key in table)
    assert "the same" in efl("diff", "runs/a", "runs/c")[1][1]


def test_bad_input_is_one_line(efl):
    for arguments in (["--in", "nowhere"], ["diff", "runs/a", "runs"], ["diff", "runs/a", "nowhere"]):
        code, _, error = efl(*arguments)
        assert code == 2
        assert error.count("\n") == 1
