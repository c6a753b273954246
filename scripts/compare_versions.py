"""Rounds of this version against rounds of another checkout, in turn, each version in a process of its own.

    git worktree add ../other f0352bf            # the first edition; any later commit will do as well
    python scripts/compare_versions.py ../other              # rounds as in efl bench overhead
    python scripts/compare_versions.py ../other --workers 2  # as in efl bench speed

Prints the median over pairs of rounds of this version's time over the other's: above 1, this one is slower. In one
process it is processor time, so that others disturb little; with worker processes it is time by the clock. What a
version calls things is looked up by what exists: the first edition's bench has other names. (It needs scikit-learn for
digits, which is no longer installed: ``pip install --no-deps --target FOLDER scikit-learn scipy joblib threadpoolctl
narwhals cloudpickle``, and PYTHONPATH=FOLDER.)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median, quantiles

HERE = Path(__file__).resolve().parents[1]
WARM_UP = 10
JOBS = {"linear": "images", "mlp": "digits", "mlp200": "images", "cnn_large": "images"}
FIRST_EDITION = {"efl:2021": "efl"}
"""What the first edition calls algorithms that have other names today."""

CHILD = """
import sys, time
from efl.bench.speed import images
from efl.federation import load
try:
    from efl.bench.fixtures import setup_of
    from efl.processes import keep_freed_memory, single_threaded
    keep_freed_memory()  # as every command does; the first edition does so by itself
    names = {}
except ImportError:
    from efl.bench.setting import setup_of
    from efl.engine.processor import quick_arithmetic as single_threaded
    names = dict(%r)
job, data, algorithm, workers = sys.argv[1:]
federation = images() if data == "images" else load(data)
setup = setup_of(names.get(algorithm, algorithm), federation, job, {}, {"workers": int(workers)})
if hasattr(setup, "assemble"):
    coordinator, host = setup.assemble()
    run_round = coordinator.play
else:
    coordinator = setup.coordinator()
    host, run_round = coordinator.transport, coordinator.run_round
    host.start()
clock = time.process_time if workers == "1" else time.perf_counter
round_ = 0
with single_threaded():
    print("ready", flush=True)
    for _ in sys.stdin:
        began = clock()
        run_round(round_)
        print(clock() - began, flush=True)
        round_ += 1
host.close()
"""


class Version:
    """A process that runs one round whenever it is asked to."""

    def __init__(self, checkout: Path, job: str, algorithm: str, workers: int) -> None:
        paths = [str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", CHILD % FIRST_EDITION, job, JOBS[job], algorithm, str(workers)]
        self.process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._line() != "ready":
            raise SystemExit(f"{checkout} does not run {algorithm} on {job}")

    def run_round(self) -> float:
        """Seconds of the next round."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line())

    def end(self) -> None:
        """End the process."""
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


def pairs(other: Path, job: str, algorithm: str, workers: int, rounds: int) -> list[tuple[float, float]]:
    """Seconds of this version's rounds, and of the other's; each goes first in its turn."""
    versions = Version(HERE, job, algorithm, workers), Version(other, job, algorithm, workers)
    found = []
    for round_ in range(WARM_UP + rounds):
        spent = [0.0, 0.0]
        for which in (0, 1) if round_ % 2 else (1, 0):
            spent[which] = versions[which].run_round()
        found.append((spent[0], spent[1]))
    for version in versions:
        version.end()
    return found[WARM_UP:]


def main() -> None:
    """Measure every algorithm on every job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other version's checkout")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--algorithms", default="fedavg,efl:2021")
    parser.add_argument("--jobs", default="linear,mlp,mlp200", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    options = parser.parse_args()
    for job in options.jobs.split(","):
        for algorithm in options.algorithms.split(","):
            found = pairs(options.other.resolve(), job, algorithm, options.workers, options.rounds)
            low, middle, high = quantiles([here / there for here, there in found], n=4)
            here, there = (1e3 * median(times) for times in zip(*found, strict=True))
            ratio = f"{middle:.3f} (quartiles {low:.3f}, {high:.3f}; {here:.1f} ms over {there:.1f})"
            print(f"{algorithm}, {job} on {JOBS[job]}: {ratio}", flush=True)


if __name__ == "__main__":
    main()
