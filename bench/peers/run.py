"""elastic-fl beside other frameworks, on the same job in the same minutes.

    python bench/peers/run.py [--environments DIR] [--out DIR] [--rounds 20] [--turns 3] [--networks linear,mlp200]

makes a virtual environment for each peer, lets elastic-fl and the peers play rounds in turn, each turn in a fresh
process, and leaves peers.json, peers.md and peers.png in the folder --out; networks measured there before are kept.
Takes a quarter of an hour. The machine should have nothing else to do: frameworks whose threads wait for each other
(FedLab) suffer most from other work.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from results import Results, draw, table

HERE = Path(__file__).parent
SAMPLES = 10 * 20 * 20  # a round
PATIENCE = 600  # seconds for a turn
TORCH = "torch>=2.13,<2.14"
NETWORKS = {
    "linear": "logistic regression 784 → 10",
    "mlp200": "mlp 784-200-200-10",
    "cnn_large": "cnn, 1,663,370 parameters",
}


@dataclass(frozen=True)
class Peer:
    """A framework: what to install, and how to start its script."""

    name: str
    script: str
    packages: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()


OURS = Peer("elastic-fl", "efl_job.py")
TWO_PROCESSES = ("-m", "torch.distributed.run", "--nproc-per-node=2")
PEERS = (
    Peer("FedJAX 0.0.17", "fedjax_job.py", ("fedjax==0.0.17",)),
    Peer("pfl 0.6, 2 processes", "pfl_job.py", (TORCH, "pfl==0.6.0"), TWO_PROCESSES),
    Peer("FedLab 1.3", "fedlab_job.py", (TORCH, "fedlab==1.3.0")),
    Peer("Flower 1.41, Ray", "flower_job.py", (TORCH, "flwr[simulation]==1.41.0")),
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


def speed(peer: Peer, python: str, network: str, rounds: int) -> float:
    """Samples a second in the median round of a process of its own."""
    command = [python, *peer.launcher, str(HERE / peer.script), network, str(rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{peer.name}, {network}: not done after {PATIENCE} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        raise SystemExit(f"{peer.name}, {network}: failed\n{done.stderr[-2000:]}")
    return SAMPLES / float(json.loads(lines[-1])["seconds"])


def compare(network: str, pythons: dict[Peer, str], rounds: int, turns: int) -> Results:
    """Medians over turns: samples a second of each framework, and how many times as fast elastic-fl was beside it."""
    speeds: dict[Peer, list[float]] = {peer: [] for peer in pythons}
    for _ in range(turns):
        for peer, python in pythons.items():
            speeds[peer].append(speed(peer, python, network, rounds))
    return {
        peer.name: (median(reached), median(ours / theirs for ours, theirs in zip(speeds[OURS], reached, strict=True)))
        for peer, reached in speeds.items()
    }


def main() -> None:
    """Network by network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, default=Path(".peers"))
    parser.add_argument("--out", type=Path, default=Path("runs/peers"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    options = parser.parse_args()
    pythons = {peer: python_of(peer, options.environments) for peer in (OURS, *PEERS)}
    options.out.mkdir(parents=True, exist_ok=True)
    record = options.out / "peers.json"
    results: dict[str, Results] = json.loads(record.read_text()) if record.exists() else {}
    for network in options.networks.split(","):
        rounds = options.rounds if network != "cnn_large" else max(2, options.rounds // 6)
        results[NETWORKS[network]] = compare(network, pythons, rounds, options.turns)
        record.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    (options.out / "peers.md").write_text(table(results))
    draw(results, options.out / "peers.png")
    print(table(results), end="")


if __name__ == "__main__":
    main()
