"""Studies: the best candidate by held-out data is tested, and what is done is not done again."""

import json

import numpy as np
import pytest
import torch

from efl import Federation, UserError, load
from efl.config import parse
from efl.paper import study as study_module
from efl.paper.data import DATA, setting
from efl.paper.figures import FIGURES, write
from efl.paper.results import Results
from efl.paper.study import Candidate, Method, Setting, Study, run
from efl.paper.table3 import METHODS
from efl.paper.table3 import study as table3
from efl.paper.table3 import write as write_table3
from efl.runs.setup import build
from efl.track.progress import run_with_progress

TINY = {
    "federation": {"dataset": "synthetic:1,1", "clients": 4, "partition": "natural"},
    "training": {"rounds": 3, "cohort": 2, "local_steps": 2, "learning_rate": 0.1},
}


@pytest.fixture
def made(monkeypatch):
    """The jobs that a study has made, in order."""
    jobs = []

    def record(found, workers, on_done, *, quiet):
        jobs.extend(found)
        return run_with_progress(found, workers, on_done, quiet=quiet)

    monkeypatch.setattr(study_module, "run_with_progress", record)
    return jobs


def quickly(study, out):
    return run(study, out, workers=1, quiet=True)


def test_the_best_candidate_on_held_out_data_is_tested_with_every_seed(tmp_path, made):
    still = Candidate(rate=1e-6)  # learns nothing
    federation = {"dataset": "digits", "clients": 4, "partition": "iid"}
    digits = {**TINY, "federation": federation, "fleet": {"stragglers": 0.0, "inactive": 0.0}}
    method = Method("A", "fedavg", {}, (still, Candidate(3.0)))
    study = Study("s", [Setting("tiny", digits)], [method], seeds=2, tries=2)
    results = quickly(study, tmp_path)
    jobs = made
    assert [job.label for job in jobs] == ["tiny | A | tuning 1", "tiny | A | tuning 2"] + ["tiny | A | test"] * 2
    assert [job.experiment.federation.evaluate_on for job in jobs] == ["validation", "validation", "test", "test"]
    rates = [job.experiment.training.learning_rate for job in jobs]
    assert rates == pytest.approx([1e-7, 0.3, 0.3, 0.3])
    assert [line["cell"]["seed"] for line in results.final("tiny", "A")] == [0, 1]
    assert not list((tmp_path / "runs").iterdir())


def test_what_is_done_is_not_done_again_and_more_can_be_added(tmp_path, made):
    study = Study("s", [Setting("tiny", TINY)], [Method("A", "fedavg")], tries=1)
    quickly(study, tmp_path)
    first = len(made)
    quickly(study, tmp_path)
    assert len(made) == first
    larger = Study("s", [Setting("tiny", TINY)], [Method("A", "fedavg"), Method("B", "efl")], seeds=2, tries=1)
    quickly(larger, tmp_path)
    assert [job.label for job in made[first:]] == ["tiny | B | test", "tiny | A | test", "tiny | B | test"]
    assert len(Results(tmp_path / "results.jsonl").lines) == 4


def test_what_was_done_with_other_settings_is_done_again(tmp_path, made):
    quickly(Study("s", [Setting("tiny", TINY)], [Method("A", "fedavg")], tries=1), tmp_path)
    counts = [len(made)]
    for change in ({"evaluate_personalised_every": 2}, {"rounds": 4}):
        changed = Setting("tiny", {**TINY, "training": {**TINY["training"], **change}})
        results = quickly(Study("s", [changed], [Method("A", "fedavg")], tries=1), tmp_path)
        counts.append(len(made))
    assert np.diff(counts).tolist() == [0, 1]  # evaluating more or less often changes nothing
    assert [line["summary"]["rounds"] for line in results.final("tiny", "A")] == [4]


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"cell": {}}\n')
    with pytest.raises(UserError, match=r"results\.jsonl:1: not a result"):
        Results(tmp_path / "results.jsonl")


@pytest.mark.parametrize("scale", list(DATA))
def test_every_experiment_of_the_paper_can_be_parsed(scale):
    studies = [table3(scale), *(make(scale).study for make in FIGURES.values())]
    for study in studies:
        for one in study.settings:
            for method in study.methods:
                settings = {"name": method.algorithm, **method.settings, **method.candidates[-1].settings}
                assert parse({**one.tables, "algorithm": settings}).training.rounds > 0


def test_tables_and_panels_show_what_was_found(tmp_path):
    quick = {"rounds": 2, "local_steps": 1, "evaluate_personalised_every": 2}
    study = Study("table3", [setting("smoke", "sent140", training=quick)], METHODS[-2:], tries=1)
    results = quickly(study, tmp_path)
    table = write_table3(study, results, tmp_path)
    for method in ("FedAMP", "EFL"):
        accuracy = 100 * results.final("for sent140", method)[0]["summary"]["bmta_local"]
        assert f"| {method} | {accuracy:.2f} |" in table
    assert r"\begin{tabular}{lrrrrr}" in (tmp_path / "table.tex").read_text()
    figure = FIGURES["figure2"]("smoke", ["sent140"])
    lines = [json.dumps({**line, "cell": {**line["cell"], "method": "best λ"}}) for line in results.lines.values()]
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
    assert "| λ = 0 | – |" in write(figure, Results(tmp_path / "results.jsonl"), tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 10_000


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
