"""Which settings reach which algorithm of a comparison."""

import pytest

from efl.config import load_experiment, parse
from efl.errors import UserError
from efl.runs.comparison import plan


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
