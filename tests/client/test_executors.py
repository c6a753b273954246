"""Worker processes: the same model as without them, whatever happens to them."""

import os
import random
import signal
import threading
import time
from contextlib import closing

import numpy as np
import pytest
import torch

from efl import EFL, FedAvg, Fleet, UserError
from efl.client.executors import ProcessExecutor
from efl.config import parse
from efl.runs.loop import Run
from efl.runs.setup import build

FLEET = Fleet(stragglers=0.5, inactive=0.1, lost=0.1)


def run_of(federation, workers, algorithm=None, model="mlp", device="cpu", **training):
    table = {
        "federation": {"clients": len(federation)},
        "model": {"name": model},
        "training": {"rounds": 8, "local_steps": 4, "evaluate_every": 4, **training},
        "engine": {"workers": workers, "device": device},
    }
    return Run(build(parse(table), federation, None, algorithm or EFL(), FLEET))


def executor_of(federation):
    return run_of(federation, 2).coordinator.transport.host.executor


def comparable(result):
    history = [{k: v for k, v in record.items() if k != "seconds"} for record in result.history]
    return result.summary["model_sha256"], history


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("algorithm", [EFL(), FedAvg(), EFL(density_up=1.0, density_down=1.0)])
def test_results_do_not_depend_on_the_number_of_workers(digits, model, algorithm):
    alone, *others = (comparable(run_of(digits, workers, algorithm, model).execute()) for workers in (1, 2, 3))
    assert others == [alone, alone]


def test_killed_workers_are_replaced_and_the_run_does_not_notice(digits):
    training = {"rounds": 150, "evaluate_every": 50, "local_steps": 10}
    expected = comparable(run_of(digits, 1, **training).execute())
    run = run_of(digits, 2, **training)
    executor, over = run.coordinator.transport.host.executor, threading.Event()
    killer = threading.Thread(target=kill_now_and_then, args=(executor, 20, over))
    killer.start()
    result = run.execute()
    over.set()
    killer.join()
    assert comparable(result) == expected
    assert executor.deaths == 20


def kill_now_and_then(executor, times, over):
    """Each death is noticed, then comes the next at a random moment."""
    rng = random.Random(0)
    for death in range(times):
        time.sleep(rng.random() * 0.02)
        os.kill(rng.choice(executor.processes).process.pid, signal.SIGKILL)
        while executor.deaths == death:
            if over.wait(0.0005):
                return


def numbered(worker, number):
    return [np.full(1000, float(number))]


def test_arrays_among_results_are_not_overwritten_by_later_jobs(digits):
    """A worker leaves large replies in memory that it uses again two jobs later."""
    run = run_of(digits, 2)
    executor = ProcessExecutor(run.coordinator.transport.host.worker, 2)
    try:
        found = list(executor.map(numbered, list(range(20))))
    finally:
        executor.close()
    assert [one[0].tolist() for one in found] == [[float(number)] * 1000 for number in range(20)]


def test_an_error_in_a_worker_is_the_users_to_see(digits):
    run = run_of(digits, 2)

    def broken(work):
        raise ValueError("out of luck")

    object.__setattr__(run.coordinator.algorithm, "local_update", broken)
    with pytest.raises(ValueError, match="out of luck"):
        run.execute()
    assert run.coordinator.transport.host._executor is None


class OddError(Exception):
    """Cannot be made again from what it says."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def odd(worker, job):
    if job == "local":

        class LocalError(Exception):
            pass

        raise LocalError("nobody else knows me")
    raise OddError("this", "that")


@pytest.mark.parametrize(("job", "said"), [("odd", "OddError: this and that"), ("local", "LocalError: nobody else")])
def test_errors_that_cannot_be_sent_are_told(digits, job, said):
    with closing(executor_of(digits)) as executor:
        with pytest.raises(RuntimeError, match=said):
            executor.map(odd, [job])
        assert executor.deaths == 0


def slow_or_wrong(worker, job):
    if job == 0:
        raise ValueError("wrong")
    time.sleep(0.2)
    return job


def test_what_was_under_way_when_an_error_came_is_not_taken_for_later_results(digits):
    with closing(executor_of(digits)) as executor:
        with pytest.raises(ValueError, match="wrong"):
            executor.map(slow_or_wrong, list(range(6)))
        assert executor.map(slow_or_wrong, [11, 12, 13, 14]) == [11, 12, 13, 14]


def test_a_job_that_always_kills_its_worker_ends_the_run(digits, monkeypatch):
    monkeypatch.setattr("efl.client.executors.MAX_DEATHS", 3)
    run = run_of(digits, 2)
    object.__setattr__(run.coordinator.algorithm, "local_update", lambda work: os._exit(9))
    with pytest.raises(UserError, match="worker processes died"):
        run.execute()


def test_no_process_is_left_behind(digits):
    run = run_of(digits, 2, rounds=2)
    executor = run.coordinator.transport.host.executor
    assert isinstance(executor, ProcessExecutor)
    processes = [worker.process for worker in executor.processes]
    run.execute()
    assert not any(process.is_alive() for process in processes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("algorithm", [EFL(), EFL(fisher="true", step="explicit"), FedAvg()])
def test_a_cuda_device_comes_to_the_same_model_but_for_rounding(digits, model, algorithm):
    here = run_of(digits, 1, algorithm, model, rounds=3).execute()
    there = run_of(digits, 1, algorithm, model, device="cuda", rounds=3).execute()
    for ours, theirs in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-3)


def test_a_stopped_worker_is_replaced_after_a_time_and_the_model_is_the_same(digits, caplog):
    expected = comparable(run_of(digits, 1).execute())
    run = run_of(digits, 2)
    run.coordinator.transport.host.worker_timeout = 0.5
    executor = run.coordinator.transport.host.executor
    os.kill(executor.processes[1].process.pid, signal.SIGSTOP)
    assert comparable(run.execute()) == expected
    assert executor.deaths >= 1
    assert "hangs, or is stopped" in caplog.text


def large(worker, job):
    return len(job)


def test_a_worker_that_does_not_take_a_long_job_is_replaced(digits):
    """What does not fit into the pipe would otherwise block the process that sends it."""
    run = run_of(digits, 2)
    executor = ProcessExecutor(run.coordinator.transport.host.worker, 2, timeout=0.5)
    try:
        os.kill(executor.processes[0].process.pid, signal.SIGSTOP)
        assert list(executor.map(large, [b"x" * 10**7] * 4)) == [10**7] * 4
    finally:
        executor.close()
    assert executor.deaths >= 1


def test_a_job_may_take_twenty_times_as_long_as_the_longest_before_and_at_least_a_minute(digits):
    executor = ProcessExecutor(run_of(digits, 2).coordinator.transport.host.worker, 2)
    try:
        assert executor.limit == 600.0
        executor.longest = 1.0
        assert executor.limit == 60.0
        executor.longest = 30.0
        assert executor.limit == 600.0
    finally:
        executor.close()


def slow(worker, number):
    time.sleep(1.0)
    return number


def test_a_time_out_that_is_too_short_costs_time_but_ends(digits):
    executor = ProcessExecutor(run_of(digits, 2).coordinator.transport.host.worker, 2, timeout=0.3)
    try:
        assert list(executor.map(slow, [0, 1])) == [0, 1]
    finally:
        executor.close()
    assert executor.deaths >= 2
