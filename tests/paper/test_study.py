"""Studies: what the search finds on held-out data is tested, and what is done is not done again."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

pytest.importorskip("optuna")

from efl import Federation, UserError, load
from efl.algorithms.search import Choice
from efl.config import parse
from efl.paper import published
from efl.paper import study as study_module
from efl.paper.data import DATA, setting
from efl.paper.figures import FIGURES, write
from efl.paper.results import Results
from efl.paper.study import Method, Setting, Study, run
from efl.paper.table3 import METHODS
from efl.paper.table3 import study as table3
from efl.paper.table3 import write as write_table3
from efl.paper.timing import Speeds
from efl.runs.setup import build
from efl.track.progress import run_with_progress
from efl.tune import trials as trials_module
from efl.tune.search import Effort

TINY = {
    "federation": {"dataset": "synthetic:1,1", "clients": 4, "partition": "natural"},
    "training": {"rounds": 3, "cohort": 2, "local_steps": 2, "learning_rate": 0.1},
}
RATES = {"training.learning_rate": Choice((1e-7, 0.3))}


@pytest.fixture
def made(monkeypatch):
    """The runs that a study has made, in order: trials of searches, and tests."""
    jobs = []

    def record(found, workers, on_done, *, quiet):
        jobs.extend(found)
        return run_with_progress(found, workers, on_done, quiet=quiet)

    class Recorded(trials_module.Run):
        def execute(self):
            jobs.append(self.setup)
            return super().execute()

    monkeypatch.setattr(study_module, "run_with_progress", record)
    monkeypatch.setattr(trials_module, "Run", Recorded)
    return jobs


def quickly(study, out, said=None):
    return run(study, out, workers=1, quiet=True, say=lambda text: None if said is None else said.append(text))


def test_what_is_best_on_held_out_data_is_tested_with_every_seed(tmp_path, made):
    federation = {"dataset": "digits", "clients": 4, "partition": "iid"}
    training = {**TINY["training"], "learning_rate": 1e-7}  # learns nothing
    digits = {"federation": federation, "training": training, "fleet": {"stragglers": 0.0, "inactive": 0.0}}
    method = Method("A", "fedavg", {}, RATES)
    study = Study("s", [Setting("tiny", digits)], [method], seeds=2, effort=Effort(4, 2, 1, 1))
    results = quickly(study, tmp_path)
    experiments = [job.experiment for job in made]
    assert [one.federation.evaluate_on for one in experiments[-3:]] == ["validation", "test", "test"]
    assert {one.federation.evaluate_on for one in experiments[:-2]} == {"validation"}
    assert {one.training.rounds for one in experiments[:-2]} == {2}
    assert experiments[0].training.learning_rate == 1e-7
    assert [one.training.learning_rate for one in experiments[-2:]] == [0.3, 0.3]
    assert [line["cell"]["seed"] for line in results.final("tiny", "A")] == [0, 1]
    assert not list((tmp_path / "runs").iterdir())


def test_what_is_done_is_not_done_again_and_more_can_be_added(tmp_path, made):
    said = []
    study = Study("s", [Setting("tiny", TINY)], [Method("A", "fedavg")])
    quickly(study, tmp_path, said)
    first = len(made)
    quickly(study, tmp_path, said)
    assert len(made) == first
    assert len(said) == 1
    assert said[0].startswith("tiny: 1 run to go, about")
    larger = Study("s", [Setting("tiny", TINY)], [Method("A", "fedavg"), Method("B", "efl")], seeds=2)
    quickly(larger, tmp_path, said)
    assert sorted(job.label for job in made[first:]) == ["tiny | A | test", "tiny | B | test", "tiny | B | test"]
    assert len(Results(tmp_path / "results.jsonl").lines) == 4
    assert said[1].startswith("tiny: 3 runs to go")


def test_what_was_done_with_other_settings_is_done_again(tmp_path, made):
    quickly(Study("s", [Setting("tiny", TINY)], [Method("A", "fedavg")]), tmp_path)
    counts = [len(made)]
    for change in ("training.evaluate_personalised_every=2", "training.rounds=4"):
        changed = Setting("tiny", TINY).changed([change])
        results = quickly(Study("s", [changed], [Method("A", "fedavg")]), tmp_path)
        counts.append(len(made))
    assert np.diff(counts).tolist() == [0, 1]  # evaluating more or less often changes nothing
    assert [line["summary"]["rounds"] for line in results.final("tiny", "A")] == [4]


def test_a_line_that_was_cut_short_is_made_again(tmp_path, made):
    study = Study("s", [Setting("tiny", TINY)], [Method("A", "fedavg"), Method("B", "fedprox")])
    quickly(study, tmp_path)
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text()[:-20])
    quickly(study, tmp_path)
    assert len(made) == 3
    assert len(Results(path).lines) == 2


def test_curves_have_the_bytes_sent_so_far(tmp_path):
    tables = {**TINY, "training": {**TINY["training"], "evaluate_every": 1}, "fleet": {}}
    results = quickly(Study("s", [Setting("tiny", tables)], [Method("A", "fedavg")]), tmp_path)
    (line,) = results.final("tiny", "A")
    for way in ("up", "down"):
        each = [point[f"bytes_{way}"] for point in line["curve"]]
        assert [point[f"sent_{way}"] for point in line["curve"]] == np.cumsum(each).tolist()
        assert line["curve"][-1][f"sent_{way}"] == line["summary"][f"bytes_{way}"]


def test_all_clients_take_part_in_as_many_fewer_rounds():
    tables = {**TINY, "training": {"rounds": 40, "cohort": 1, "evaluate_every": 8, "learning_rate": 0.1}}
    study = Study("s", [], [])
    every = study.experiment(Setting("tiny", tables), Method("A", "fedamp", all_clients=True)).training
    assert (every.rounds, every.cohort, every.evaluate_every) == (10, 4, 2)


@pytest.mark.slow
def test_killed_and_started_again_nothing_is_run_twice(tmp_path):
    """Killed as often as it takes, whatever it is at: every line of results.jsonl and every trial is there once."""
    command = [sys.executable, "-m", "efl", "paper", "table3", "--scale=smoke", "--datasets=sent140", "--workers=1"]
    command += ["--methods=FedAvg,EFL", "--seeds=2", "--out", str(tmp_path)]
    results, code = tmp_path / "results.jsonl", None
    for lines in (0, 2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and not _reached(tmp_path, lines):
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    assert code == 0
    cells = [json.dumps(json.loads(line)["cell"], sort_keys=True) for line in results.read_text().splitlines()]
    assert len(cells) == len(set(cells)) == 4
    before = results.read_bytes()
    assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert results.read_bytes() == before
    assert not list((tmp_path / "runs").iterdir())


def _reached(out, lines):
    """Whether as many runs are done, or for none a search has begun."""
    path = out / "results.jsonl"
    if lines == 0:
        return any((out / "search").glob("*.journal"))
    return path.exists() and path.read_text().count("\n") >= lines


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"cell": {}}\n')
    with pytest.raises(UserError, match=r"results\.jsonl:1: not a result"):
        Results(tmp_path / "results.jsonl")


@pytest.mark.parametrize("scale", list(DATA))
def test_every_experiment_of_the_paper_can_be_parsed(scale):
    others = (published.table(name, scale).study for name in ("fedsmu", "pfllib"))
    studies = [table3(scale), *(make(scale).study for make in FIGURES.values()), *others]
    for study in studies:
        assert len({one.name for one in study.settings}) == len(study.settings)
        for one in study.settings:
            for method in study.methods:
                assert study.experiment(one, method).training.rounds > 0


def test_medium_is_as_others_train_it():
    (snippets,) = table3("medium", ["shakespeare"]).settings
    training = snippets.tables["training"]
    assert 20 <= training["local_steps"] * training["batch_size"] <= 24  # an epoch of the usual 22 snippets
    assert (training["cohort"], training["rounds"]) == (10, 1200)
    names = [one.name for one in FIGURES["figure3"]("medium").study.settings]
    assert len(names) == 2 * 4 * 3
    assert "sent140, 1 clients per round, 90% stragglers" in names


def test_tables_and_panels_show_what_was_found(tmp_path):
    quick = {"rounds": 2, "local_steps": 1, "evaluate_personalised_every": 2}
    rows = [method for method in METHODS if method.name in ("FedAMP", "EFL")]
    study = Study("table3", [setting("smoke", "sent140", training=quick)], rows, seeds=2)
    results = quickly(study, tmp_path)
    table = write_table3(study, results, tmp_path)
    for method in ("FedAMP", "EFL"):
        values = [100 * line["summary"]["bmta_local"] for line in results.final("for sent140", method)]
        assert f"| {method} | {np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} |" in table.replace("**", "")
    assert r"\begin{tabular}{lrrrrrrrr}" in (tmp_path / "table.tex").read_text()
    assert Speeds(tmp_path / "speed.json").known(study.experiment(study.settings[0], rows[0])).step > 0
    differences = (tmp_path / "differences.md").read_text()
    assert differences in table
    assert "…" in differences.splitlines()[2]
    figure = FIGURES["figure2"]("smoke", ["sent140"])
    lines = [json.dumps({**line, "cell": {**line["cell"], "method": "best λ"}}) for line in results.lines.values()]
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
    assert "| λ = 0 | – |" in write(figure, Results(tmp_path / "results.jsonl"), tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["fedsmu", "pfllib"])
def test_what_others_published_stands_beside_what_was_found(tmp_path, name):
    plan = published.table(name, "smoke")
    one = plan.study.settings[0].changed(["training.rounds=2", "training.evaluate_every=1", "training.local_steps=2"])
    row = plan.study.methods[1]
    study = Study(plan.study.name, [one], [row])
    found = quickly(study, tmp_path)
    table = published.write(dataclasses.replace(plan, study=study), found, tmp_path)
    (line,) = found.final(one.name, row.name)
    ours, theirs = line["summary"][plan.key], plan.said[one.name][row.name]
    assert f"| {row.name} | {100 * ours:.2f} | {theirs:.2f} |" in table
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    settings = published.table(name, "full").study.settings
    sizes = [(two.tables["federation"]["clients"], two.tables["training"]["cohort"]) for two in settings]
    assert sizes == {"fedsmu": [(50, 10), (200, 10)], "pfllib": [(20, 20)]}[name]


def test_tuning_never_sees_test_data():
    whole = load("digits", clients=10)
    tuning = build(parse({"federation": {"clients": 10, "evaluate_on": "validation"}})).federation
    for client in range(10):
        used = set(tuning.train[client]) | set(tuning.test[client])
        assert used == set(whole.train[client])
        assert not set(tuning.train[client]) & set(tuning.test[client])


def test_a_client_with_a_single_sample_is_tuned_on_it():
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    whole = Federation(x, y, train=[np.array([0]), np.array([1, 2])], test=[np.array([3]), np.array([3])], classes=2)
    tuning = whole.for_tuning()
    assert [indices.tolist() for indices in tuning.train + tuning.test][::2] == [[0], [0]]
