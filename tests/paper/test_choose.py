import pytest

from efl.config import Experiment
from efl.errors import UserError
from efl.paper import choose
from efl.runs.comparison import run_jobs


def test_every_case_is_a_valid_experiment(tmp_path):
    jobs = choose.plan(choose.CASES, 1, tmp_path)
    assert all(isinstance(job.experiment, Experiment) for job in jobs)
    assert (
        len({job.directory for job in jobs})
        == len(jobs)
        == sum(len(c.stragglers) * len(c.methods) for c in choose.CASES)
    )
    assert {job.experiment.training.seed for job in jobs} == {choose.FIRST_SEED}


def test_cases_are_chosen_by_their_data():
    assert {case.federation["dataset"] for case in choose.chosen_cases(None)} == {"digits", "synthetic:1,1"}
    assert [case.name for case in choose.chosen_cases("shakespeare")] == ["shakespeare"]


def test_ceilings_stand_beside_the_others(tmp_path):
    (silos,) = [case for case in choose.CASES if case.name == "digits, 10 silos"]
    jobs = choose.plan([silos.with_ceilings()], 1, tmp_path)
    names = [job.label.split("|")[2] for job in jobs]
    assert names == ["EFL", "FedAvg", "SCAFFOLD", *choose.CEILINGS]
    assert jobs[-1].experiment.algorithm == {"name": "efl", "step_up": choose.FINE, "step_down": choose.FINE}


def test_the_table_has_accuracy_and_bytes(tmp_path):
    case = choose.Case("small", {"dataset": "digits", "clients": 10}, (0.5,), {"cohort": 4, "local_steps": 3}, "linear")
    jobs = choose.plan([case], 1, tmp_path, rounds=6)
    run_jobs(jobs, 1)
    table = choose.write(jobs, tmp_path)
    assert (tmp_path / "table.md").read_text() == table
    header, _, row = table.strip().splitlines()
    assert "FedAvg's bytes over EFL's" in header
    assert row.count("/") == 3
    assert "small" in row


def test_the_command_refuses_data_that_no_case_has():
    from efl.cli.paper import choose as command

    with pytest.raises(UserError, match="no case"):
        command(datasets="none")
