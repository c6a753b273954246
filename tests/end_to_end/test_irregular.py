"""Whole runs of fleets in which clients come and go, are abandoned, and take time."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from efl import EFL, Experiment, FedAvg, Fleet, UserError, load_experiment, resume, run, train
from efl.config import parse
from efl.runs.setup import build
from efl.server.aggregation import updates_of

TRAINING = {"rounds": 40, "cohort": 6, "local_steps": 4, "evaluate_every": 10, "evaluate_own_every": "never"}


def record_of(fleet, digits, rounds, **training):
    result = train(digits, "linear", FedAvg(), fleet, **{**TRAINING, "rounds": rounds, **training})
    return result.history


def test_only_members_are_asked_and_the_rate_restarts_when_the_objective_changes(digits):
    fleet = Fleet(stragglers=0, inactive=0, arrivals=[[10, 5]], departures=[[20, [0, 1]]], on_departure="drop")
    history = record_of(fleet, digits, 30, cohort=20)
    asked = [set(map(int, record["clients"])) for record in history]
    assert asked[9] == set(range(15))
    assert asked[10] == set(range(20))
    assert asked[20] == set(range(2, 20))
    etas = [record["eta"] for record in history]
    assert etas[0] == etas[10] == etas[20] > etas[9]
    assert etas[19] == pytest.approx(0.1 / (1 + 9 / 50))
    changes = {record["round"]: record["membership"] for record in history if "membership" in record}
    assert {round_: [change["what"] for change in found] for round_, found in changes.items()} == {
        10: ["arrived"],
        20: ["departed"],
    }
    assert set(history[9]["accuracy_by_arrival"]) == {"0"}
    assert set(history[29]["accuracy_by_arrival"]) == {"0", "10"}


@pytest.mark.parametrize(("schedule", "last"), [("constant", 0.1), ("decay", 0.1 / (1 + 4 / 50))])
def test_schedules_restart_or_not(digits, schedule, last):
    fleet = Fleet(arrivals=[[5, 1]])
    assert record_of(fleet, digits, 10, schedule=schedule)[-1]["eta"] == pytest.approx(last)
    going_on = record_of(fleet, digits, 10, schedule=schedule, restart=False)[-1]["eta"]
    assert going_on == pytest.approx(0.1 if schedule == "constant" else 0.1 / (1 + 9 / 50))


def test_theorem_1s_schedule(digits):
    etas = [r["eta"] for r in record_of(Fleet(arrivals=[[2, 1]]), digits, 4, schedule="theorem1:2,60")]
    assert etas == pytest.approx([16 * 4 / (2 * (t * 4 + 60) * 4) for t in (1, 2, 1, 2)])
    with pytest.raises(UserError, match=r"training.schedule: 'theorem1:2' should be theorem1:MU,GAMMA"):
        train(digits, schedule="theorem1:2")
    with pytest.raises(UserError, match=r"training.schedule: unknown schedule 'square'"):
        train(digits, schedule="square")


def assembled(digits, fleet, **training):
    experiment = parse({"federation": {"clients": len(digits)}, "training": {"local_steps": 1, **training}})
    algorithm = EFL(elasticity=0, density_up=1, density_down=1)
    return build(experiment, digits, None, algorithm, fleet).coordinator()


@pytest.mark.parametrize(("rule", "total"), [("keep", 0.9), ("drop", 1.0)])
def test_shares_are_renormalised_only_if_the_departed_are_dropped(digits, rule, total):
    fleet = Fleet(stragglers=0, inactive=0, departures=[[1, [0, 1]]], on_departure=rule)
    coordinator = assembled(digits, fleet, cohort=20)
    coordinator.run_round(0)
    assert coordinator.table.shares.sum() == pytest.approx(1)
    coordinator.run_round(1)
    there = coordinator.table.shares[2:].sum()
    assert there == pytest.approx(total, abs=0.02)


def test_the_weights_of_clients_that_are_sampled_only_when_available_stay_unbiased(digits, tmp_path, monkeypatch):
    """Σ 1/π_k over the rounds in which client k contributes must come to as much for all, however often it is there."""
    lines = [f"{c},0,{100 if c % 2 else 25},1000,1e9,1e9" for c in range(20)]
    header = "client,start,stop,steps_per_second,down_bytes_per_second,up_bytes_per_second"
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["# period: 100", header, *lines]) + "\n")
    fleet = Fleet(stragglers=0, inactive=0, trace=str(path), selection="available")
    coordinator = assembled(digits, fleet, cohort=5)
    total = np.zeros(20)
    clock = coordinator.transport.clock

    def watched(*given):
        updates = updates_of(*given)
        if clock.now > 1000:  # once the rates are known
            for update in updates:
                total[update.client] += 1 / (update.sampling_probability * update.response_rate)
        return updates

    monkeypatch.setattr("efl.server.coordinator.updates_of", watched)
    for round_ in range(500):
        state = clock.state_dict()
        clock.load_state_dict({**state, "now": torch.full((1,), 7.3 * round_, dtype=torch.float64)})  # at all hours
        coordinator.run_round(round_)
    always, rarely = total[1::2].mean(), total[::2].mean()
    assert rarely == pytest.approx(always, rel=0.15)


def test_who_is_silent_is_abandoned_and_who_comes_back_is_taken_back(digits):
    def there(client, round_):
        return float(client == 3 and round_ < 30)

    fleet = Fleet(stragglers=0, inactive=there, abandon=0.6)
    history = record_of(fleet, digits, 60, cohort=20)
    log = [(r["round"], change["what"], change["clients"]) for r in history for change in r.get("membership", [])]
    assert log[0] == (9, "abandoned", [3])
    assert log[1][1:] == ("returned", [3])
    assert 30 <= log[1][0] < 55
    assert len(log) == 2
    assert history[9]["membership"][0]["why"] == "inactivity 1.00 > 0.6"
    asked_while_away = [r["round"] for r in history[10:30] if "3" in r["clients"]]
    assert asked_while_away == [14, 19, 24, 29]
    answered = [r["round"] for r in history[30 : log[1][0] + 1] if r["clients"].get("3")]
    assert not any(3 in history[round_]["counted"] for round_ in answered)  # it does not count until it is back


IRREGULAR = [
    "--set=fleet.stragglers=0.5",
    "--set=fleet.arrivals=[[12, 30, 8], [40, 4]]",
    "--set=fleet.departures=[[20, 60, 5]]",
    "--set=fleet.on_departure=drop",
    "--set=fleet.abandon=0.35",
    "--set=fleet.inactive=[[0, 0.3], [50, 0.6], [80, 0.1]]",
    "--set=fleet.trace=phones",
    "--set=fleet.deadline=100",
    "--set=fleet.selection=available",
    "--set=training.rounds=110",
    "--set=training.local_steps=5",
    "--set=training.evaluate_own_every=never",
    "--set=track.checkpoint_every=3",
]


def test_a_fleet_with_everything_resumes_to_the_same_model_after_a_kill(tmp_path):
    command = [sys.executable, "-m", "efl"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run(load_experiment(None, [option.removeprefix("--set=") for option in IRREGULAR]), tmp_path / "whole")
    process = subprocess.Popen([*command, "run", *IRREGULAR, "-q", "--out", "killed"], cwd=tmp_path, env=environment)
    metrics = tmp_path / "killed/metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < 55):
        time.sleep(0.005)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    resume(tmp_path / "killed")
    whole, killed = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "killed"))
    assert whole["model_sha256"] == killed["model_sha256"]
    assert whole["simulated_seconds"] == killed["simulated_seconds"] > 0
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "killed")]
    events = [[json.loads(line).get("membership") for line in found] for found in lines]
    assert events[0] == events[1]
    kinds = {change["what"] for changes in events[0] if changes for change in changes}
    assert {"arrived", "departed", "abandoned"} <= kinds


def test_time_to_accuracy_is_told_in_simulated_time():
    slow, quick = (
        run(
            Experiment().with_values(
                training={"target_accuracy": 0.6, "evaluate_every": 1, "evaluate_own_every": "never"},
                algorithm={"name": "fedprox"},
                fleet={"trace": "hospitals", "selection": "available", "stragglers": 0, "inactive": 0, **deadline},
            )
        ).summary
        for deadline in ({}, {"deadline": 8})
    )
    for summary in (slow, quick):
        assert summary["seconds_to_target"] == summary["simulated_seconds"]
        assert summary["rounds_to_target"] is not None
    assert quick["seconds_to_target"] < slow["seconds_to_target"]


def test_newcomers_with_new_classes_are_learnt_if_the_learning_rate_restarts():
    """docs/fleet.md shows the same over all rounds."""

    def final(restart):
        history = run(
            parse(
                {
                    "federation": {"clients": 20, "partition": "groups:5"},
                    "training": {
                        "rounds": 120, "cohort": 20, "local_steps": 10, "decay": 5, "restart": restart,
                        "evaluate_every": 120, "evaluate_own_every": "never", "learning_rate": 0.3,
                    },
                    "algorithm": {"density_up": 0.05, "density_down": 0.05},
                    "fleet": {"stragglers": 0.5, "inactive": 0.1, "arrivals": [[60, 10]]},
                }
            )
        ).history  # fmt: skip
        return history[-1]["accuracy_by_arrival"]

    anew, going_on = final(restart=True), final(restart=False)
    print(f"newcomers' and founders' accuracy: restart {anew}, none {going_on}")
    assert anew["60"] > 0.9 * anew["0"]
    assert going_on["60"] < anew["60"] - 0.1


def test_a_run_does_not_go_on_with_another_trace(tmp_path, digits):
    header = "client,start,stop,steps_per_second,down_bytes_per_second,up_bytes_per_second"
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join([header, *(f"{client},0,,5,1e6,1e6" for client in range(20))]) + "\n")
    settings = {"rounds": 2, "cohort": 3, "local_steps": 2}
    train(digits, "linear", fleet=Fleet(trace=str(trace)), out=tmp_path / "run", **settings)
    trace.write_text(trace.read_text().replace("3,0,,5", "3,0,,7"))
    with pytest.raises(UserError, match="another trace"):
        resume(tmp_path / "run", federation=digits)
