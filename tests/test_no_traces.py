"""A program that calls `efl.train` finds everything as it was: threads, arithmetic, generators, handlers, pictures."""

import logging
import random
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from fleets import IRREGULAR
from torch import nn

import efl
from efl.processes import single_threaded
from efl.rng import seeded_torch


def denormals_are_flushed():
    smallest = sys.float_info.min
    return smallest / 2 == 0.0


def process_state():
    """What a library might change behind its caller's back."""
    levels = {
        name: logger.level for name, logger in logging.root.manager.loggerDict.items() if hasattr(logger, "level")
    }
    return {
        "threads": torch.get_num_threads(),
        "threads of a new thread": in_a_thread(torch.get_num_threads),
        "denormals": denormals_are_flushed(),
        "torch": torch.random.get_rng_state().tolist(),
        "numpy": str(np.random.get_state()),
        "random": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "numpy errors": np.geterr(),
        "warnings": list(warnings.filters),
        "handlers": list(logging.root.handlers),
        "levels": {name: level for name, level in levels.items() if level},
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)},
        "hooks": (sys.excepthook, threading.excepthook),
        "path": list(sys.path),
    }


def in_a_thread(work, *arguments):
    found = []
    thread = threading.Thread(target=lambda: found.append(work(*arguments)))
    thread.start()
    thread.join()
    return found[0]


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(144, 32),
        nn.Dropout(0.5),
        nn.Linear(32, 10),
    )


@pytest.mark.parametrize("model", ["mlp", "cnn", "dropout"])
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_left_changed_by_a_run(digits, tmp_path, model, workers):
    torch.set_num_threads(2)
    module = network() if model == "dropout" else model
    experiment = efl.Experiment().with_values(
        federation={"clients": len(digits)},
        training={"rounds": 3, "cohort": 4, "local_steps": 3},
        engine={"workers": workers},
    )
    efl.train(digits, "linear", rounds=1)  # imports are made once
    before = process_state()
    if isinstance(module, str):
        efl.run(experiment.with_values(model={"name": module}), tmp_path / "run", federation=digits, fleet=IRREGULAR)
    else:
        efl.run(experiment, tmp_path / "run", federation=digits, module=module, fleet=IRREGULAR)
    assert process_state() == before


def fail_inside():
    with single_threaded():
        assert torch.get_num_threads() == 1
        with single_threaded():
            assert denormals_are_flushed()
        assert torch.get_num_threads() == 1
        raise RuntimeError("enough")


def test_settings_that_were_found_come_back_also_after_an_error(digits):
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(RuntimeError, match="enough"):
            fail_inside()
        assert torch.get_num_threads() == 2
        assert denormals_are_flushed()
    finally:
        torch.set_flush_denormal(False)
    with single_threaded():
        assert denormals_are_flushed()
    assert not denormals_are_flushed()


def test_threads_that_come_and_go_in_turn_leave_every_thread_as_it_was():
    torch.set_num_threads(2)
    inside, leave = threading.Event(), threading.Event()

    def stay():
        with single_threaded():
            inside.set()
            leave.wait(10)
        return torch.get_num_threads(), denormals_are_flushed()

    found = []
    other = threading.Thread(target=lambda: found.append(stay()))
    with single_threaded():
        other.start()
        inside.wait(10)
    assert (torch.get_num_threads(), denormals_are_flushed()) == (2, False)
    leave.set()
    other.join()
    assert found[0][0] == 2
    assert (torch.get_num_threads(), in_a_thread(torch.get_num_threads)) == (2, 2)


def test_runs_in_concurrent_threads_give_the_models_they_give_alone(digits):
    modules = []
    for seed in range(3):
        with seeded_torch(seed):
            modules.append(network())
    names = ("efl", "fedavg", "scaffold")

    def trained(number):
        settings = {"rounds": 6, "cohort": 5, "local_steps": 4, "seed": number, "evaluate_own_every": 3}
        return efl.train(digits, modules[number], names[number], IRREGULAR, **settings).summary["model_sha256"]

    alone = [trained(number) for number in range(3)]
    for _ in range(2):
        with ThreadPoolExecutor(3) as threads:
            assert list(threads.map(trained, range(3))) == alone


def test_the_default_generator_belongs_to_one_thread_at_a_time():
    with seeded_torch(7):
        expected = torch.rand(4).tolist()

    def draw(_):
        with seeded_torch(7):
            return [float(torch.rand(())) for _ in range(4)]

    with ThreadPoolExecutor(4) as threads:
        assert all(found == expected for found in threads.map(draw, range(800)))


def test_a_report_chooses_no_back_end_and_opens_no_figure(tmp_path):
    script = """
import sys, efl
from efl.runs.directory import RunDirectory
efl.train(rounds=2, cohort=3, local_steps=2, out="run")
assert "matplotlib" not in sys.modules
from efl.track.report import write_report
write_report(RunDirectory.open("run"))
import matplotlib
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams._get_backend_or_none() is None, "a back end was chosen"
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_library_never_ends_the_program():
    """A grep: `sys.exit` is for the command."""
    from pathlib import Path

    root = Path(efl.__file__).parent
    found = [str(path.relative_to(root)) for path in root.rglob("*.py") if "sys.exit" in path.read_text()]
    assert found == ["cli/__init__.py"]


def test_memory_is_kept_by_our_own_processes_alone(tmp_path):
    """`mallopt` is called by the command and by workers, never by `efl.train`."""
    script = """
import efl, efl.processes
def refuse(): raise AssertionError("the library changed malloc's options")
efl.processes.keep_freed_memory = refuse
efl.train(rounds=1, cohort=2, local_steps=1)
import efl.cli, sys
sys.argv = ["efl", "--help"]
efl.cli.keep_freed_memory = lambda: print("kept")
efl.cli.main()
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("kept")
