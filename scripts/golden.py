"""A golden table: model, bytes and client state of every algorithm on every path through the program.

    python scripts/golden.py write             # into scripts/golden.json
    python scripts/golden.py check [PREFIX]    # exit code 1, and a line for every entry that changed

Every algorithm and preset runs with irregular clients in compiled code, eagerly, on a CNN, on the tests' stand-in for
Flower's grid, and some as two ranks under torchrun. The last bits of a model depend on the processor, so a table is
compared only where it was written; a commit that changes an entry says why.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # eager models depend on how many threads PyTorch finds when it is imported
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from golden_state import all_names, grid_run, local_run  # noqa: E402  what of the table depends on the code's inside

TABLE = Path(__file__).with_name("golden.json")
FLEET = {"stragglers": 0.5, "inactive": 0.1, "lost": 0.2, "arrivals": [[3, 2]], "departures": [[4, 1]]}
TRAINING = {"rounds": 6, "cohort": 6, "local_steps": 5, "batch_size": 10, "evaluate_every": 3, "evaluate_own_every": 6}
SMALL = {"federation": {"clients": 12}, "training": TRAINING, "fleet": FLEET}
DEFAULT = {"training": {"rounds": 12}, "fleet": {"stragglers": 0.5, "inactive": 0.1}}
PATHS: dict[str, dict[str, Any]] = {
    "native": {},
    "eager": {"engine": {"compile": False}},
    "cnn": {"model": {"name": "cnn"}},
}
# Explicit options of the first edition, whatever the defaults become.
EFL_2021 = {"elasticity": 0.3, "density_up": 0.01, "density_down": 0.01, "weighting": "elastic", "weight_cap": 20.0}
EFL_2021 |= {"fisher": "running", "step": "implicit", "participation": "unbiased", "field": "auto", "echo": True}
FIRST_EDITION: dict[str, dict[str, Any]] = {
    "efl": EFL_2021,
    "fedavg": {},
    "fedprox": {"proximity": 0.1, "incomplete": "use"},
    "scaffold": {"server_rate": 1.0, "control": "path"},
    "stc": {"density_up": 0.01, "density_down": 0.01},
    "apfl": {"mixture": 0.5, "adaptive": True},
}
BASELINES = ["efl", "efl:paper", "fedavg", "fedprox", "fednova", "scaffold", "fedgate", "fedgate:compressed", "vrlsgd"]
BASELINES += ["mime", "mime:lite", "stc", "signsgd", "fedcurv", "apfl", "fedamp"]
TODAY = "efl today"  # with today's defaults
RANKED = [TODAY, "efl", "efl:paper", "fedavg", "scaffold", "apfl", "fedgate:compressed"]
FIGURES = ("model_sha256", "bytes_up", "bytes_down", "final_mean_accuracy", "bmta_local")


def algorithm(name: str) -> dict[str, Any]:
    """The section that names an algorithm, with the first edition's options where these may change."""
    if name == TODAY:
        return {"name": "efl"}
    return {"name": name, **(EFL_2021 if name == "efl" else {})}


def entries(only: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All entries whose key begins with ``only``, one by one."""
    for path, settings in PATHS.items():
        for name in (TODAY, *BASELINES):
            if (key := f"{path}/{name}").startswith(only):
                yield key, figures(*local_run({**SMALL, **settings, "algorithm": algorithm(name)}))
    for path in ("native", "eager"):
        for name, options in FIRST_EDITION.items():
            if (key := f"default-{path}/{name}").startswith(only):
                yield key, figures(*local_run({**DEFAULT, **PATHS[path], "algorithm": {"name": name, **options}}))
    for name in (TODAY, *BASELINES):
        if (key := f"grid/{name}").startswith(only):
            with tempfile.TemporaryDirectory() as where:
                config = {f"algorithm.{option}": value for option, value in algorithm(name).items()}
                yield key, figures(*grid_run(config, Path(where)))
    for name in RANKED:
        if (key := f"torchrun/{name}").startswith(only):
            yield key, torchrun(name)


def figures(summary: dict[str, Any], state: str) -> dict[str, Any]:
    """What of a run is in the table."""
    return {**{key: summary[key] for key in FIGURES}, "state": state}


def torchrun(name: str) -> dict[str, Any]:
    """The same small experiment by two ranks; their clients' state stays with them."""
    with tempfile.TemporaryDirectory() as where:
        import tomli_w

        table = {**SMALL, "algorithm": algorithm(name), "engine": {"workers": 1}}
        Path(where, "experiment.toml").write_text(tomli_w.dumps(table))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*launcher, "-m", "efl", "run", "experiment.toml", "-q", "--out", "run"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=where, env=environment, check=True, capture_output=True, timeout=300)
        summary = json.loads(Path(where, "run", "summary.json").read_text())
    return {key: summary[key] for key in FIGURES}


def processor() -> str:
    """What the last bits of a model depend on: the instructions there are, and how PyTorch multiplies with them."""
    import torch
    from torch.nn.functional import conv2d

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    found = hashlib.sha256(f"{platform.machine()} {flags} torch {torch.__version__}".encode())
    generator = torch.Generator().manual_seed(0)
    for rows, inner, columns in ((10, 64, 200), (20, 784, 10), (200, 33, 7)):
        left, right = (
            torch.randn(6, rows, inner, generator=generator),
            torch.randn(6, inner, columns, generator=generator),
        )
        for product in (left @ right, left[0] @ right[0]):
            found.update(product.numpy().tobytes())
    images, kernels = torch.randn(10, 8, 14, 14, generator=generator), torch.randn(16, 8, 5, 5, generator=generator)
    found.update(conv2d(images, kernels).numpy().tobytes())
    return found.hexdigest()[:16]


def check(only: str) -> int:
    """Compare with the table; how many entries changed."""
    table = json.loads(TABLE.read_text())
    if table["processor"] != processor():
        print("the table was written on another kind of processor; write one with the code to compare with")
        return 1
    changed = 0
    for key, found in entries(only):
        expected = table["entries"].get(key)
        differing = [name for name in found if expected is None or expected.get(name) != found[name]]
        if differing:
            changed += 1
            print(f"changed: {key}: {', '.join(differing)}", flush=True)
    print(f"{changed} entries changed")
    return changed


def main() -> None:
    """Write or check the table."""
    assert set(BASELINES) <= set(all_names())
    what, only = sys.argv[1] if len(sys.argv) > 1 else "check", sys.argv[2] if len(sys.argv) > 2 else ""
    if what not in ("check", "write"):
        sys.exit(__doc__)
    if what == "check":
        sys.exit(1 if check(only) else 0)
    table = json.loads(TABLE.read_text()) if only and TABLE.exists() else {"entries": {}}
    table |= {"processor": processor(), "entries": {**table["entries"], **dict(entries(only))}}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
