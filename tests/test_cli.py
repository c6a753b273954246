"""The command, as a user types it."""

import json
import tomllib

import published
import pytest

from efl.cli import main

SMALL = ["--set=training.rounds=3", "--set=training.local_steps=3", "--set=training.cohort=5"]


@pytest.fixture
def efl(monkeypatch, tmp_path, capsys):
    """Run the command in an empty folder; returns exit code, output and error text."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["efl", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return call


def test_run_leaves_a_directory_and_says_what_came_out(efl, tmp_path):
    code, out, _ = efl("run", *SMALL)
    assert code == 0
    assert "best mean accuracy" in out
    assert "bytes up / down" in out
    assert "runs/efl-digits-1/report.html" in out.replace("\n", "")
    assert json.loads((tmp_path / "runs/efl-digits-1/summary.json").read_text())["rounds"] == 3
    assert efl("run", *SMALL)[0] == 0
    assert (tmp_path / "runs/efl-digits-2").exists()


def test_without_a_file_clients_are_irregular_and_with_one_they_are_as_it_says(efl, tmp_path):
    (tmp_path / "exp.toml").write_text("")
    efl("run", *SMALL, "--out=demo", "-q")
    efl("run", "exp.toml", *SMALL, "--out=plain", "-q")
    fleets = [tomllib.loads((tmp_path / name / "config.toml").read_text())["fleet"] for name in ("demo", "plain")]
    assert [(fleet["stragglers"], fleet["inactive"]) for fleet in fleets] == [(0.5, 0.1), (0.0, 0.0)]
    assert fleets[1].keys() == fleets[0].keys()


def test_a_run_can_be_run_again_from_its_own_config(efl, tmp_path):
    efl("run", *SMALL, "--set", "algorithm.name=efl:paper", "--out", "first")
    code, _, _ = efl("run", "first/config.toml", "--out", "second")
    assert code == 0
    first, second = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("first", "second"))
    assert first["model_sha256"] == second["model_sha256"]
    assert second["algorithm"] == "efl:paper"


def test_an_experiment_file(efl, tmp_path):
    (tmp_path / "exp.toml").write_text('[algorithm]\nname = "efl"\npreset = "paper"\n[training]\nrounds = 2\n')
    assert efl("run", "exp.toml", "--set=training.local_steps=2", "--out=out", "-q")[0] == 0
    assert json.loads((tmp_path / "out/summary.json").read_text())["algorithm"] == "efl:paper"


def test_compare_writes_one_table_and_goes_on_when_asked_again(efl, tmp_path):
    command = [
        "compare",
        *SMALL,
        "--algorithms=efl,fedavg",
        "--seeds=2",
        "--out=cmp",
        "--workers=1",
        "--set=algorithm.density_up=0.1",
    ]
    assert efl(*command)[0] == 0
    assert {path.name for path in (tmp_path / "cmp").iterdir()} >= {
        "efl-seed0", "efl-seed1", "fedavg-seed0", "fedavg-seed1", "report.html", "curves.png", "table.md",
    }  # fmt: skip
    stamp = (tmp_path / "cmp/efl-seed0/summary.json").stat().st_mtime_ns
    assert efl(*command)[0] == 0
    assert (tmp_path / "cmp/efl-seed0/summary.json").stat().st_mtime_ns == stamp
    code, _, err = efl(*command, "--set=training.batch_size=7")
    assert code == 2
    assert "another experiment" in err


def test_report_of_one_and_of_several(efl, tmp_path):
    efl("run", *SMALL, "--out=a", "-q")
    efl("run", *SMALL, "--out=b", "-q", "--set=algorithm.name=fedavg")
    (tmp_path / "a/report.html").unlink()
    assert efl("report", "a")[0] == 0
    assert (tmp_path / "a/report.html").exists()
    assert efl("report", "a", "b")[0] == 0
    assert (tmp_path / "runs/report-1/report.html").exists()
    code, _, err = efl("compare", *SMALL, "--out=a")
    assert (code, "already holds a run" in err) == (2, True)


def test_resume_of_a_finished_run_says_so(efl):
    efl("run", *SMALL, "--out=a", "-q")
    code, out, _ = efl("resume", "a", "-q")
    assert code == 0
    assert "finished" in out


def test_data_list(efl):
    code, out, _ = efl("data", "list")
    assert code == 0
    assert "digits" in out
    assert "synthetic" in out


def test_ablation_smoke(efl, tmp_path):
    code, out, _ = efl("paper", "ablation", "--scale=smoke", "--out=abl", "--workers=1")
    assert code == 0
    assert "no memory" in out
    assert (tmp_path / "abl/figure.png").stat().st_size > 10_000
    assert "no drift correction" in (tmp_path / "abl/table.md").read_text()


@pytest.mark.parametrize(
    ("study", "line", "picture"),
    [
        ("theorem1", "PASS  quadratic, unequal inactivity: stalls where the theory says", "quadratic.png"),
        ("theorem2", "PASS  leaving, Equation 10: shift below the bound: 20 of 20", "shifts.png"),
        ("table1", "PASS  EFL: rounds fall with S like the formula", "rounds.png"),
    ],
)
def test_theory_smoke(efl, tmp_path, study, line, picture):
    code, out, _ = efl("paper", study, "--scale=smoke", "--out=study")
    assert code == 0
    assert line in out
    assert "FAIL" not in out
    assert (tmp_path / "study" / picture).stat().st_size > 20_000
    results = json.loads((tmp_path / "study/results.json").read_text())
    assert results["passed"] is True
    assert len(results["checks"]) == out.count("PASS")
    assert results["checks"][0]["figures"] in (tmp_path / "study/table.md").read_text()


def test_a_failed_check_is_exit_code_1(efl, tmp_path, monkeypatch):
    from efl.paper import theorem2

    monkeypatch.setattr(theorem2, "arrival_bound", lambda **_: 1e-12)
    code, out, _ = efl("paper", "theorem2", "--scale=smoke", "--out=study")
    assert code == 1
    assert "FAIL  joining, Equation 11 mended" in out
    assert json.loads((tmp_path / "study/results.json").read_text())["passed"] is False


def test_a_diverged_run_is_reported_and_exits_with_one(efl, tmp_path):
    code, out, _ = efl("run", "--set=training.learning_rate=1e7", "--set=algorithm.density_up=1", "--out=a", "-q")
    assert code == 1
    assert "diverged" in out
    assert json.loads((tmp_path / "a/summary.json").read_text())["diverged"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set=training.roundz=3"], "unknown key training.roundz; did you mean training.rounds?"),
        (["--set=trainin.rounds=3"], "unknown key trainin; did you mean training?"),
        (["--set=algorithm.densty_up=0.1"], "did you mean algorithm.density_up?"),
        (["--set=fleet.straglers=0.1"], "did you mean fleet.stragglers?"),
        (["--set=rounds=3"], "write --set training.rounds=3"),
        (["--set=training=3"], "write section.key=value"),
        (["--set=federation.dataset=imagenet"], "unknown dataset 'imagenet'; choose one of: cifar10, cifar100, digits"),
        (["--set=federation.partition=stripes"], "unknown partition 'stripes'"),
        (["--set=federation.partition=classes:11"], "more classes per client than there are (10)"),
        (["--set=federation.partition=natural"], "owner per sample"),
        (["--set=federation.clients=2000"], "too few"),
        (["--set=federation.clients=0"], "federation.clients"),
        (["--set=training.cohort=51"], "training.cohort is 51, but there are only 50 clients"),
        (["--set=training.rounds=-1"], "training.rounds"),
        (["--set=training.learning_rate=nan"], "training.learning_rate"),
        (["--set=algorithm.density_up=0"], "algorithm.density_up"),
        (["--set=algorithm.density_down=1.5"], "algorithm.density_down"),
        (["--set=algorithm.elasticity=-1"], "algorithm.elasticity"),
        (["--set=algorithm.name=fedagv"], "unknown algorithm 'fedagv'; did you mean 'fedavg'?"),
        (["--set=algorithm.name=newton"], "unknown algorithm 'newton'; choose one of: apfl, cafe, ditto"),
        (["--set=algorithm.name=efl:best"], "unknown preset 'best' of efl; choose one of: paper"),
        (["--set=model.name=transformer"], "unknown model 'transformer'"),
        (["--set=model.name=cnn", "--set=federation.dataset=synthetic:1,1"], "needs images"),
        (["--set=fleet.stragglers=2"], "fleet.stragglers"),
        (["--set=fleet.inactive=[0.1,0.2]"], "2 probabilities for 50 clients"),
        (["--set=engine.device=tpu"], "engine.device"),
        (["--set=engine.device=cuda:99"], "CUDA device"),
        (["missing.toml"], "missing.toml: no such file"),
        (["bad.toml"], "bad.toml: not valid TOML"),
        (["flat.toml"], "training is a section, not a value"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(efl, tmp_path, arguments, message):
    (tmp_path / "bad.toml").write_text("[training\nrounds = 3")
    (tmp_path / "flat.toml").write_text("training = 3")
    before = sorted(tmp_path.iterdir())
    code, out, err = efl("run", *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_directory_with_another_run_is_left_alone(efl, tmp_path):
    efl("run", *SMALL, "--out=a", "-q")
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    code, _, err = efl("run", *SMALL, "--out=a")
    assert code == 2
    assert "already holds a run" in err
    assert before == {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("mine")
    assert "is not empty" in efl("run", *SMALL, "--out=other")[2]


def test_a_damaged_checkpoint_is_one_line(efl, tmp_path):
    efl("run", *SMALL, "--out=a", "-q")
    (tmp_path / "a/summary.json").unlink()
    next((tmp_path / "a/checkpoint").glob("round-*")).write_bytes(b"rubbish")
    code, _, err = efl("resume", "a")
    assert code == 2
    assert "damaged" in err
    assert err.count("\n") == 1


def test_resume_of_nothing(efl):
    code, _, err = efl("resume", "nowhere")
    assert (code, "not a run directory" in err) == (2, True)


def test_data_prepare_list_and_show(efl, tmp_path):
    published.mnist(tmp_path / "files")
    code, out, _ = efl("data", "prepare", "mnist", "--from", "files", "--data-dir", "data")
    assert code == 0
    assert "mnist: 80 + 20 images" in out
    code, out, _ = efl("data", "list", "--data-dir", "data")
    assert code == 0
    here = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line and not line.startswith(" ")}
    assert (here["mnist"], here["digits"], here["emnist"]) == ("yes", "yes", "no")
    assert "efl data prepare emnist --from DIR" in out
    code, out, _ = efl("data", "show", "mnist", "--clients=5", "--partition=classes:4", "--data-dir=data")
    assert code == 0
    assert "classes per client" in out
    assert (tmp_path / "mnist-classes-4.png").read_bytes().startswith(b"\x89PNG")
    run = ["run", *SMALL, "--set=federation.dataset=mnist", "--set=federation.clients=5", "--out=out", "-q"]
    code, _, _ = efl(*run, "--set=federation.partition=iid", "--set=federation.data_dir=data")
    assert code == 0
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert (summary["dataset"], summary["model"]) == ("mnist", "cnn")
    assert efl("resume", "out")[0] == 0  # the config knows where the data are


def test_data_show_knows_the_data_sets_of_a_plugin(efl, tmp_path):
    (tmp_path / "mine.py").write_text("""
import torch, efl

@efl.register("halves-of-mine")
def halves(request) -> efl.Federation:
    return efl.Federation.from_tensors(torch.rand(80, 3), torch.arange(80) % 2, **request.dealing)
""")
    code, out, _ = efl("data", "show", "halves-of-mine", "--clients=4", "--out=mine.png", "--plugin=mine.py")
    assert code == 0
    assert "mine.png" in out


def test_data_show_draws_many_clients_too(efl, tmp_path):
    code, out, _ = efl("data", "show", "synthetic:1,1", "--clients=150", "--out=many.png")
    assert code == 0
    assert "and 138 more clients" in out
    assert (tmp_path / "many.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "mnist", "--from=nowhere"], "nowhere is no directory"),
        (["prepare", "minst", "--from=."], "unknown dataset 'minst'"),
        (["prepare", "digits", "--from=."], "digits needs no preparing"),
        (["show", "mnist", "--data-dir=."], "mnist is not in .; fetch"),
        (["show", "digits", "--partition=classes:11"], "more classes per client than there are"),
        (["show", "digits", "--out=picture"], "names no picture"),
        (["show", "digits", "--out=no/such/folder/x.png"], "cannot be written"),
        (["show", "digits", "--partition=natural"], "digits has none"),
    ],
)
def test_bad_data_commands_are_one_line(efl, arguments, message):
    code, _, err = efl("data", *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_the_version(efl):
    from efl import __version__

    assert efl("--version") == (0, f"elastic-fl {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("efl re", ["resume", "report"]),
        ("efl data ", ["list", "prepare", "show"]),
        ("efl run --set training.le", ["training.learning_rate="]),
        ("efl run --set algorithm.", ["algorithm.name="]),
    ],
)
def test_the_shell_completes_commands_and_keys(efl, monkeypatch, words, completed):
    monkeypatch.setenv("_EFL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    code, out, _ = efl()
    assert (code, out.split()) == (0, completed)


def test_a_completion_can_be_installed(efl, monkeypatch):
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    code, out, _ = efl("--show-completion")
    assert code == 0
    assert "_EFL_COMPLETE=complete_bash" in out


def test_python_completes_public_names_alone():
    import efl as package

    names = dir(package)
    assert {"train", "Callback", "EarlyStopping", "Federation", "load_model", "__version__"} <= set(names)
    assert not [name for name in names if name.startswith("_") and name != "__version__"]
    assert all(getattr(package, name) is not None for name in names)
