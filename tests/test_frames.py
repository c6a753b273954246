"""How many of our frames lie between the command and a step."""

import sys
from pathlib import Path

import pytest

import efl
from efl.cli import main
from efl.native import NotCompiledError, loops
from efl.training.backends.linear_gradients import Gradients
from efl.training.backends.native import CompiledChain

PACKAGE = Path(efl.__file__).parent
SETTINGS = ["federation.clients=5", "training.rounds=1", "training.cohort=3", "training.local_steps=2"]
SETTINGS += ["training.evaluate_own_every=never", "engine.workers=1"]


def our_frames():
    """The functions of ours that are running, from the command on."""
    frame, found = sys._getframe(2), []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.append(f"{path.relative_to(PACKAGE)}:{frame.f_code.co_name}")
        frame = frame.f_back
    return found[::-1]


def frames_to(function, owner, monkeypatch, tmp_path, settings):
    """The stacks from the command to a function, while rounds are run."""
    real, stacks = getattr(owner, function), []

    def watched(*given, **named):
        stacks.append(our_frames())
        return real(*given, **named)

    monkeypatch.setattr(owner, function, watched)
    options = [f"--set={setting}" for setting in [*SETTINGS, *settings]]
    monkeypatch.setattr(sys, "argv", ["efl", "run", "-q", *options, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    return [stack for stack in stacks if "server/coordinator.py:run_round" in stack]


def test_ten_frames_to_a_native_step(monkeypatch, tmp_path):
    try:
        loops()
    except NotCompiledError as problem:
        pytest.skip(str(problem))
    stack, *_ = frames_to("train_arguments", CompiledChain, monkeypatch, tmp_path, [])
    assert stack == [
        "cli/__init__.py:main",
        "cli/runs.py:run",
        "api.py:run",
        "runs/loop.py:execute",
        "server/coordinator.py:run_round",
        "transport/local.py:send",
        "client/host.py:train",
        "client/worker.py:train",
        "algorithms/efl.py:local_update",
        "training/backends/native.py:train",
    ]


def test_twelve_frames_to_an_eager_step(monkeypatch, tmp_path):
    stacks = frames_to("backward", Gradients, monkeypatch, tmp_path, ["model.name=cnn"])
    assert stacks
    for stack in stacks:
        assert stack[0] == "cli/__init__.py:main"
        assert stack[-1].startswith("training/backends/eager.py:")
        assert len(stack) <= 12, stack
