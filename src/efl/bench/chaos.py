"""A network of processes in which much goes wrong at once, and what it costs the honest clients.

Of ten nodes three come and go, one is stopped (SIGSTOP), one lies (`hostile`), and the disk of one is full.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from efl.api import load_model, run
from efl.config import parse
from efl.deploy.demo import prepare_app
from efl.deploy.network import LocalNetwork
from efl.deploy.supervisor import Supervisor
from efl.errors import UserError
from efl.federation import load
from efl.models import Task, build
from efl.processes import needs_linux, terminates_by_interrupt
from efl.rng import Purpose, torch_seed

NODES, COHORT = 10, 5
HOSTILE, STOPPED, FULL, FLAPPING = 0, 1, 2, (3, 4, 5)
UP, DOWN = (2.0, 5.0), (0.5, 2.0)  # deadlines that flapping nodes are there, and away
MANAGED = 2.0  # seconds after which a service manager starts again what has ended
PARTITION = "classes:5"
MISSING = (HOSTILE, STOPPED, FULL)  # clients of which hardly anything comes
TRAINING: dict[str, Any] = {"cohort": COHORT, "local_steps": 20, "batch_size": 20, "learning_rate": 0.1, "seed": 0}
LIES = """
import os

if os.environ.get("EFL_HOSTILE"):
    from efl.bench import hostile

    hostile.install()

"""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: rounds, seconds, accuracy on the honest clients' test data with and without chaos.

    Attributes:
        rounds: Rounds done.
        seconds: How long they took.
        accuracy: The mean accuracy over the honest clients.
        undisturbed: The same of a simulation in which nothing goes wrong.
        excluded: The same of one that never had the clients that lie, are stopped or have a full disk: their data are
            missing whatever a server does.
        counted: How many updates of each client were used.
        rejected: Why replies were rejected, and how often.
        late: Clients that were asked and of whom nothing came.
        flaps: How often nodes went away.
    """

    rounds: int
    seconds: float
    accuracy: float
    undisturbed: float
    excluded: float
    counted: Counter[int]
    rejected: Counter[str]
    late: Counter[int]
    flaps: int

    @property
    def passed(self) -> bool:
        """Whether it cost no more than two points besides the data that nobody could have had."""
        return self.accuracy >= self.excluded - 0.02

    def __str__(self) -> str:
        reasons = "".join(f"\n  {number} x {why}" for why, number in self.rejected.most_common())
        return (
            f"{self.rounds} rounds in {self.seconds:.0f} s, nodes went away {self.flaps} times\n"
            f"accuracy of honest clients: {100 * self.accuracy:.1f} %, undisturbed {100 * self.undisturbed:.1f} %, "
            f"without clients {HOSTILE}, {STOPPED} and {FULL} {100 * self.excluded:.1f} %\n"
            f"updates used by client: {dict(sorted(self.counted.items()))}\n"
            f"requests without a reply: {dict(sorted(self.late.items()))}\nrejected:{reasons}"
        )


def measure(rounds: int, deadline: float, say: Callable[[str], None]) -> Outcome:
    """A network with chaos, and simulations without, all of them defended."""
    needs_linux("efl bench chaos")
    training = {
        **TRAINING,
        "robust": "default",
        "rounds": rounds,
        "evaluate_every": rounds,
        "evaluate_personalised_every": "never",
    }
    sections = {"federation": {"clients": NODES, "partition": PARTITION}, "training": training}
    network = {"deadline": deadline, "margin": deadline / 5, "rejoin": 5.0, "wait_for": NODES}
    with (
        terminates_by_interrupt(),
        tempfile.TemporaryDirectory(prefix="efl-chaos-") as folder,
        _full_disk(Path(folder) / "full") as full,
    ):
        out = Path(folder) / "run"
        app = prepare_app(Path(folder) / "app", out, NODES, {**sections, "network": network})
        client_app = app / "federated" / "client_app.py"
        client_app.write_text(LIES + client_app.read_text())
        began = time.monotonic()
        disturbed_by = partial(Chaos, full=full, metrics=out / "metrics.jsonl", deadline=deadline)
        with LocalNetwork(Path(folder) / "network") as nodes, disturbed_by(nodes) as chaos:
            Supervisor(nodes, app, say).serve()
        seconds = time.monotonic() - began
        history = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        counted = Counter(client for record in history for client in record["aggregated"])
        why = Counter(
            f"client {c}: {text[:60]}" for record in history for c, text in record.get("rejected", {}).items()
        )
        late = Counter(
            int(c)
            for record in history
            for c in record["clients"]
            if int(c) not in record["aggregated"] and c not in record.get("rejected", {})
        )
        disturbed = _accuracy(load_model(out, _network()))
    never = {"fleet": {"arrivals": [[rounds, list(MISSING)]]}}
    undisturbed, excluded = (_accuracy(run(parse({**sections, **fleet})).model) for fleet in ({}, never))
    return Outcome(len(history), seconds, disturbed, undisturbed, excluded, counted, why, late, chaos.flaps)


class Chaos:
    """Starts the nodes of a network once it is up, and disturbs them in the background.

    Nodes come and go once all have come and a round is over: who arrives later is another matter, and starts the
    learning rate over.

    Args:
        network: The network.
        full: A disk that is full.
        metrics: The file that has a line for each round.
        deadline: How many seconds a round lasts at most; a node that starts needs some of them before it can work.
    """

    def __init__(self, network: LocalNetwork, full: Path, metrics: Path, deadline: float) -> None:
        self.network, self.full, self.metrics, self.deadline, self.flaps = network, full, metrics, deadline, 0
        self._over, self._random = threading.Event(), Random(0)
        self._thread = threading.Thread(target=self._disturb, daemon=True)

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _disturb(self) -> None:
        while not self._over.is_set():
            with suppress(UserError):
                self.network.wait_until_up()
                break
        self.network.register(*range(NODES))
        for client in range(NODES):
            self.network.environment["EFL_HOSTILE"] = "yes" if client == HOSTILE else ""
            self.network.start_node(client, state=self.full if client == FULL else None)
        while not (self.metrics.exists() and self.metrics.stat().st_size) and not self._over.wait(MANAGED):
            self.network.revive()
        turns = {client: time.monotonic() + self._seconds(UP) for client in FLAPPING}
        away: set[int] = set()
        stopping = time.monotonic() + UP[0] * self.deadline
        while not self._over.wait(MANAGED):
            now = time.monotonic()
            for client in FLAPPING:
                if now >= turns[client]:
                    self._flap(client, away)
                    turns[client] = now + self._seconds(DOWN if client in away else UP)
            if now >= stopping:
                self._signal(STOPPED, signal.SIGSTOP)
                stopping = float("inf")
            self.network.revive(except_for={f"client-{client}" for client in away})

    def _seconds(self, deadlines: tuple[float, float]) -> float:
        return self.deadline * self._random.uniform(*deadlines)

    def _flap(self, client: int, away: set[int]) -> None:
        """A node goes away, killed or asked to; or it may come back."""
        if client in away:
            away.remove(client)
            return
        self._signal(client, self._random.choice((signal.SIGKILL, signal.SIGTERM)))
        away.add(client)
        self.flaps += 1

    def _signal(self, client: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.network.processes[f"client-{client}"].pid, number)


@contextmanager
def _full_disk(folder: Path) -> Iterator[Path]:
    """A folder in which no state finds room: a disk of 16 kB where one may mount it, else a file in its place."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        if mounted.returncode != 0:
            folder.rmdir()
            folder.write_text("")
        yield folder
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


def _network() -> torch.nn.Module:
    """The template's."""
    return build("mlp", Task((1, 8, 8), 10), torch_seed(int(TRAINING["seed"]), Purpose.MODEL))


def _accuracy(module: torch.nn.Module) -> float:
    """The mean over the honest clients, each on its own test data."""
    federation = load("digits", NODES, PARTITION, seed=int(TRAINING["seed"]))
    assert isinstance(federation.x, torch.Tensor)
    assert federation.inputs is not None
    found: list[float] = []
    module.eval()
    for client in range(NODES):
        if client != HOSTILE:
            test = torch.from_numpy(federation.test[client])
            with torch.no_grad():
                guessed = module(federation.inputs(federation.x[test])).argmax(1)
            found.append(float((guessed == federation.y[test]).float().mean()))
    return sum(found) / len(found)
