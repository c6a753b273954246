"""Several ranks, as on several machines: the same model as from one process, also after one of them died."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes through /proc"),
    pytest.mark.xdist_group("ranks"),  # the run by one process is made once
]
SETTINGS = ["training.rounds=30", "training.evaluate_every=30", "track.checkpoint_every=5", "fleet.lost=0.1"]
OPTIONS = ["-q", *(f"--set={setting}" for setting in SETTINGS)]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(ranks):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, "-m", "efl"]


def sha(directory):
    return json.loads((directory / "summary.json").read_text())["model_sha256"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    where = tmp_path_factory.mktemp("alone")
    command = [sys.executable, "-m", "efl", "run", *OPTIONS, "--out", "run"]
    subprocess.run(command, cwd=where, env=ENVIRONMENT, check=True, capture_output=True)
    return sha(where / "run")


def test_ranks_with_workers_of_their_own_give_the_same_model(tmp_path, expected):
    command = [*torchrun(2), "run", *OPTIONS, "--set=engine.workers=2", "--out", "run"]
    subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, check=True, capture_output=True, timeout=120)
    assert sha(tmp_path / "run") == expected


def test_asynchronous_rounds_of_ranks_give_the_same_model(tmp_path):
    settings = ["training.rounds=12", "training.buffer=3", "fleet.trace=phones", "fleet.selection=available"]
    options = ["-q", *(f"--set={setting}" for setting in settings)]
    for command, out in (([sys.executable, "-m", "efl"], "one"), (torchrun(2), "two")):
        whole = [*command, "run", *options, "--out", out]
        subprocess.run(whole, cwd=tmp_path, env=ENVIRONMENT, check=True, capture_output=True, timeout=120)
    assert sha(tmp_path / "one") == sha(tmp_path / "two")


def test_a_rank_that_dies_ends_the_run_which_can_be_resumed(tmp_path, expected):
    launcher = subprocess.Popen(
        [*torchrun(2), "run", *OPTIONS, "--out", "run"], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    while launcher.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < 12):
        time.sleep(0.01)
    os.kill(process_of_rank(launcher.pid, 1), signal.SIGKILL)
    launcher.communicate(timeout=60)
    assert launcher.returncode != 0
    assert not (tmp_path / "run" / "summary.json").exists()
    command = [*torchrun(2), "resume", "run", "-q"]
    subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, check=True, capture_output=True, timeout=120)
    assert sha(tmp_path / "run") == expected


def process_of_rank(launcher, rank):
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return next(int(child) for child in children if f"RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text())
