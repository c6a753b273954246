"""elastic-fl beside other frameworks, on the same job in the same minutes.

    python bench/peers/run.py [--environments DIR] [--rounds 20] [--turns 3] [--networks linear,mlp200,cnn_large]

makes a virtual environment for each peer (FedJAX 0.0.17; pfl 0.6, which runs as two processes), lets elastic-fl and the
peers play rounds in turn, each turn in a fresh process, and prints medians. Takes a quarter of an hour. Peers that
earlier measurements found slower (Flower's simulation, FedLab, PFLlib) are left out.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
SAMPLES = 10 * 20 * 20  # a round
TORCH = "torch>=2.13,<2.14"


@dataclass(frozen=True)
class Peer:
    """A framework: what to install, and how to start its script."""

    name: str
    script: str
    packages: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()


OURS = Peer("elastic-fl", "efl_job.py")
PEERS = (
    Peer("FedJAX", "fedjax_job.py", ("fedjax==0.0.17",)),
    Peer(
        "pfl, 2 processes", "pfl_job.py", (TORCH, "pfl==0.6.0"), ("-m", "torch.distributed.run", "--nproc-per-node=2")
    ),
)


def python_of(peer: Peer, environments: Path) -> str:
    """The interpreter of a peer's environment, which is made if need be; ours is the one at work."""
    if not peer.packages:
        return sys.executable
    where = environments / peer.script.removesuffix("_job.py")
    python = where / "bin" / "python"
    if not (where / "ready").exists():
        print(f"setting up {where} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", where], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *peer.packages], check=True)
        (where / "ready").touch()
    return str(python)


def seconds(peer: Peer, python: str, network: str, rounds: int) -> float:
    """The median time of a round in a process of its own."""
    command = [python, *peer.launcher, str(HERE / peer.script), network, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(HERE)})
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        raise SystemExit(f"{peer.name}, {network}: failed\n{done.stderr[-2000:]}")
    return float(json.loads(lines[-1])["seconds"])


def main() -> None:
    """Turn by turn, then a line for each network and framework."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, default=Path(".peers"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--networks", default="linear,mlp200,cnn_large")
    options = parser.parse_args()
    pythons = {peer: python_of(peer, options.environments) for peer in (OURS, *PEERS)}
    for network in options.networks.split(","):
        rounds = options.rounds if network != "cnn_large" else max(2, options.rounds // 6)
        times: dict[Peer, list[float]] = {peer: [] for peer in pythons}
        for _ in range(options.turns):
            for peer, python in pythons.items():
                times[peer].append(seconds(peer, python, network, rounds))
        for peer, spent in times.items():
            ratio = median(theirs / ours for theirs, ours in zip(spent, times[OURS], strict=True))
            ours = "" if peer == OURS else f", elastic-fl is {ratio:.2f} × as fast"
            print(f"{network}, {peer.name}: {SAMPLES / median(spent):,.0f} samples/s{ours}", flush=True)


if __name__ == "__main__":
    main()
