"""What a live page costs the run that it shows: the same run with somebody watching and without, alternating."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from efl.api import train
from efl.federation import Federation, load
from efl.track.live.beside import served_beside

READER = """
import sys
from urllib.request import urlopen
with urlopen(sys.argv[1]) as events:
    print("connected", flush=True)
    while events.read(4096):
        pass
"""


def measure(repeats: int, rounds: int) -> str:
    """Medians of what the run takes with a viewer over what its neighbour takes without, in one line."""
    federation = load("digits")
    _seconds(federation, rounds, watched=False)  # to warm up
    pairs = []
    for number in range(repeats):
        order = (False, True) if number % 2 else (True, False)
        pairs.append({watched: _seconds(federation, rounds, watched=watched) for watched in order})
    processor, clock = ([one[True][at] / one[False][at] - 1 for one in pairs] for at in (0, 1))
    spread = f"{min(processor):+.1%} to {max(processor):+.1%}"
    times = f"{median(processor):+.1%} processor time ({spread}), {median(clock):+.1%} by the clock"
    return f"somebody watches {rounds} rounds on digits: {times}"


def _seconds(federation: Federation, rounds: int, *, watched: bool) -> tuple[float, float]:
    """Processor time and time by the clock of a run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if not watched:
            return _trained(federation, rounds, out)
        with served_beside([out]) as address, _viewer(address):
            return _trained(federation, rounds, out)


def _trained(federation: Federation, rounds: int, out: Path) -> tuple[float, float]:
    began = time.process_time(), time.perf_counter()
    train(federation, "mlp", rounds=rounds, engine={"workers": 1}, out=out)
    return time.process_time() - began[0], time.perf_counter() - began[1]


@contextmanager
def _viewer(address: str) -> Iterator[None]:
    """Within, another process reads what the page is sent."""
    command = [sys.executable, "-c", READER, f"{address.rstrip('/')}/events"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is connected
        try:
            yield
        finally:
            process.kill()
