"""Rounds with the installed C code against rounds with the same code compiled by ``-march=native``, in turn.

    python scripts/native_speed.py [--rounds 60] [--level avx2]

Prints the median over pairs of rounds of the time with the installed library over the time with the other: above 1,
the installed one is slower. Times are those of the processor, so that other processes disturb little.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from efl.bench.fixtures import coordinator_of
from efl.bench.speed import images
from efl.federation import Federation, load
from efl.native import Loops, available, library
from efl.native import load as load_level
from efl.processes import single_threaded

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
WARM_UP = 5
JOBS = {"linear on images": "linear", "mlp on digits": "mlp", "mlp200 on images": "mlp200"}


def for_this_processor(folder: Path) -> Loops:
    """The C code compiled for the very processor this runs on."""
    made = folder / "loops-native.so"
    code = [str(path) for path in sorted(library.FOLDER.parent.glob("*.c"))]
    subprocess.run(["cc", *FLAGS, *code, "-o", str(made), "-lm"], check=True)
    return Loops(ctypes.CDLL(str(made)))


def ratios(algorithm: str, network: str, federation: Federation, pair: tuple[Loops, Loops], rounds: int) -> list[float]:
    """For each pair of rounds, the time with the first library over the time with the second."""
    coordinators = []
    for loops in pair:
        use(loops)
        coordinators.append(coordinator_of(algorithm, federation, network))
    found = []
    with single_threaded():
        for round_ in range(WARM_UP + rounds):
            spent = [0.0, 0.0]
            for which in (0, 1) if round_ % 2 else (1, 0):
                use(pair[which])
                began = time.process_time()
                coordinators[which].run_round(round_)
                spent[which] = time.process_time() - began
            found.append(spent[0] / spent[1])
    return found[WARM_UP:]


def use(loops: Loops) -> None:
    """Let everything that asks for compiled code have this."""
    library._attempt = lambda: loops  # type: ignore[assignment]


def main() -> None:
    """Measure FedAvg and EFL on three networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--level", choices=library.LEVELS, default=available()[-1])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pair = load_level(options.level), for_this_processor(Path(folder))
    pictures, digits = images(), load("digits")
    for what, network in JOBS.items():
        for algorithm in ("fedavg", "efl"):
            found = ratios(algorithm, network, digits if network == "mlp" else pictures, pair, options.rounds)
            low, _, high = quantiles(found, n=4)
            ratio = f"{median(found):.3f} (quartiles {low:.3f}, {high:.3f})"
            print(f"{algorithm}, {what}: {options.level} / native = {ratio}", flush=True)


if __name__ == "__main__":
    main()
