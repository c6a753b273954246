"""Which settings reach which algorithm of a comparison."""

import sys
from dataclasses import replace

import pytest

from efl import FedProx
from efl.config import load_experiment, parse
from efl.errors import UserError
from efl.federation.sources import registry
from efl.runs.comparison import compare, plan, run_jobs


def planned(algorithms, experiment, tmp_path):
    jobs = plan(algorithms, experiment, 1, tmp_path)
    return {job.label: job.experiment.algorithm_settings for job in jobs}


def test_settings_go_to_all_who_know_them_or_to_one_by_name(tmp_path):
    experiment = parse(
        {"algorithm": {"precision": "bfloat16", "fedamp": {"proximity": 2.0}, "efl": {"elasticity": 1.0}}}
    )
    assert planned(["efl", "fedprox", "fedamp"], experiment, tmp_path) == {
        "efl": {"elasticity": 1.0},
        "fedprox": {"precision": "bfloat16"},
        "fedamp": {"precision": "bfloat16", "proximity": 2.0},
    }


def test_on_the_command_line_the_name_comes_before_the_key(tmp_path):
    experiment = load_experiment(None, ["algorithm.fedprox.proximity=0.5"])
    assert planned(["fedprox", "fedamp"], experiment, tmp_path) == {"fedprox": {"proximity": 0.5}, "fedamp": {}}


def test_settings_of_an_algorithm_that_is_not_compared_are_refused(tmp_path):
    experiment = load_experiment(None, ["algorithm.fedprx.proximity=0.5"])
    with pytest.raises(UserError, match=r"algorithm\.fedprx.*algorithm\.fedprox"):
        planned(["efl", "fedprox"], experiment, tmp_path)


TINY = {
    "federation": {"clients": 6, "partition": "iid"},
    "model": {"name": "linear"},
    "training": {"rounds": 2, "cohort": 3, "local_steps": 2},
}


def test_objects_are_compared_like_names(tmp_path):
    experiment = parse({**TINY, "algorithm": {"proximity": 0.5}})
    pulled = {"by name": "fedprox", "object": FedProx(proximity=0.5), "another": FedProx(proximity=5.0)}
    groups = compare(pulled, experiment, seeds=2, out=tmp_path, workers=1)
    digests = {label: [run["model_sha256"] for run in runs] for label, runs in groups.items()}
    assert digests["by name"] == digests["object"]
    assert digests["another"] != digests["object"]
    assert [run["seed"] for run in groups["object"]] == [0, 1]
    assert (tmp_path / "by-name-seed0/summary.json").exists()


def test_objects_without_labels_go_by_their_name(tmp_path):
    jobs = plan(["efl", FedProx()], parse(TINY), 1, tmp_path)
    assert [job.label for job in jobs] == ["efl", "fedprox"]
    with pytest.raises(UserError, match="named twice: fedprox; in Python, give labels"):
        plan([FedProx(), FedProx(proximity=1.0)], parse(TINY), 1, tmp_path)
    with pytest.raises(UserError, match="labels must differ in letters or digits"):
        plan({"a b": "efl", "a:b": "fedavg"}, parse(TINY), 1, tmp_path)


def test_objects_reach_other_processes(tmp_path):
    groups = compare({"a": FedProx(proximity=5.0), "b": FedProx(proximity=5.0)}, parse(TINY), workers=2)
    assert groups["a"][0]["model_sha256"] == groups["b"][0]["model_sha256"]


def test_a_class_that_no_other_process_finds_is_run_in_this_one(monkeypatch, tmp_path):
    class Mine(FedProx):
        pass

    Mine.__module__ = "__main__"
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    groups = compare({"mine": Mine(), "fedavg": "fedavg"}, parse(TINY), workers=2)
    assert list(groups) == ["mine", "fedavg"]


def test_data_are_loaded_once_for_each_seed(monkeypatch, tmp_path):
    source, loaded = registry.SOURCES.get("digits"), []
    counting = replace(source, make=lambda request: loaded.append(request.seed) or source.make(request))
    monkeypatch.setitem(registry.SOURCES._things, "digits", counting)
    jobs = plan(["efl", "fedavg", "fedprox"], parse(TINY), 2, tmp_path)
    run_jobs(jobs, workers=1)
    assert sorted(loaded) == [0, 1]


def test_every_run_is_checked_before_the_first_one_starts(tmp_path):
    experiment = parse({**TINY, "algorithm": {"fedprox": {"proximity": -1.0}}})
    with pytest.raises(UserError, match=r"algorithm\.proximity"):
        compare(["efl", "fedprox"], experiment, out=tmp_path, workers=1)
    assert not list(tmp_path.glob("*/summary.json"))
