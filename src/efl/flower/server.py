"""The ServerApp: the coordinator that `efl run` has, with clients behind Flower."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from efl.algorithms import create
from efl.client.host import ClientHost
from efl.config import CUSTOM, Experiment
from efl.errors import UserError
from efl.flower.config import experiment_of, fleet_of
from efl.flower.elsewhere import DistantHost, Elsewhere
from efl.flower.transport import FlowerTransport, Post
from efl.models import FlatModel
from efl.runs.directory import RunDirectory
from efl.runs.loop import Observer, Result, Run
from efl.runs.setup import Setup, spelt_out
from efl.server.abandonment import rule_of
from efl.server.client_table import ClientTable
from efl.server.coordinator import Coordinator
from efl.server.limits import Guard
from efl.server.membership import LiveMembership
from efl.server.registry import Registry
from efl.server.sampling import SAMPLERS
from efl.storage import write_atomically
from efl.track.trackers import trackers
from efl.training.backends.selection import Eager
from efl.wire import NO_MODEL

MakeModel = Callable[[Experiment], nn.Module]
Log = Callable[[str], None]
PREDECESSOR = 60.0  # seconds in which a server whose SuperLink died has noticed it and is gone


def server_app(make_model: MakeModel, observers: Callable[[], Sequence[Observer]] = lambda: ()) -> ServerApp:
    """A ServerApp that trains ``make_model(experiment)`` with the clients that come."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config, make_model, observers())

    return app


def serve(
    grid: Any,
    run_config: Mapping[str, Any],
    make_model: MakeModel,
    observers: Sequence[Observer],
    log: Log | None = None,
) -> Result:
    """Play a run to its end, or go on with the one in ``network.directory``."""
    experiment = experiment_of(run_config)
    say = log or _printed
    setup, directory = prepare_server(grid, experiment, make_model, say)
    told = [Lines(say), *observers, *trackers(experiment.track, directory.path)]
    result = Run(setup, directory, told, patience=PREDECESSOR).execute()
    say(f"finished: {result.summary['rounds']} rounds, model_sha256 {result.summary['model_sha256']}")
    return result


def prepare_server(
    grid: Any, experiment: Experiment, make_model: MakeModel, log: Log
) -> tuple[DistantSetup, RunDirectory]:
    """What the server needs, and the directory of its run, which may exist already."""
    algorithm = create(
        experiment.algorithm_name, experiment.algorithm_settings, [one.model_dump() for one in experiment.transform]
    )
    fleet = fleet_of(experiment)
    experiment = spelt_out(experiment, algorithm, fleet)
    experiment = experiment.with_values(federation={"dataset": CUSTOM}, model={"name": CUSTOM})
    network, clients = experiment.network, experiment.federation.clients
    where = Path(network.directory)
    directory = RunDirectory.open(where) if (where / "config.toml").exists() else RunDirectory.create(where, experiment)
    if directory.experiment().model_copy(update={"network": network}) != experiment:
        raise UserError(f"{where} holds another experiment; set network.directory to a new one")
    if directory.read_summary() is not None:
        raise UserError(f"{where} holds a run that is finished; set network.directory to a new one")
    registry = Registry(clients, network.patience, directory.path / "clients.json")
    post = Post(grid, registry, run_name(directory.name), network.deadline, log)
    federation = Elsewhere(clients, "the clients' data")
    setup = DistantSetup(experiment, federation, Eager(FlatModel(make_model(experiment))), algorithm, fleet, post, log)
    return setup, directory


def run_name(path: Path) -> str:
    """What the run is known by, to the clients too; it stays the same when the server is started again."""
    if not path.exists():
        write_atomically(path, secrets.token_hex(8).encode())
    return path.read_text()


@dataclass(frozen=True, eq=False)
class DistantSetup(Setup):
    """A run whose clients are behind Flower."""

    post: Post
    log: Log

    def assemble(self, state: Path | None = None) -> tuple[Coordinator, ClientHost]:
        """A coordinator whose transport is the post, and a host that stands for the clients out there."""
        registry, network = self.post.registry, self.experiment.network
        fleet, training = self.fleet, self.experiment.training
        table = ClientTable.of(registry.sizes)
        rule = rule_of(fleet, table.shares, training.local_steps, training.rounds)
        members = LiveMembership(
            registry.calendar, rule, fleet.on_departure == "drop", partial(self._open_round, table)
        )
        transport = FlowerTransport(self.post, max(1.0, network.deadline - network.margin))
        guard = Guard(network.norm_bound)
        host = DistantHost(self.algorithm, self.model, self.federation, self._here, self._look)
        plan = self.plan
        coordinator = Coordinator(
            self.algorithm,
            self.model,
            SAMPLERS[fleet.selection],
            plan,
            table,
            transport,
            members,
            clock=None,
            guard=guard,
        )
        return coordinator, host

    def _open_round(self, table: ClientTable, round_: int) -> None:
        """Wait until there is somebody to ask: before the first round for as many as were wanted, later for anyone."""
        wanted, registry = self.experiment.network.wait_for, self.post.registry
        if round_ < registry.opened:  # put back to an earlier round: what clients have may be of those given up
            table.version[:] = NO_MODEL
        enough = 1 if round_ > 0 else self.experiment.training.cohort if wanted == "auto" else wanted
        said = -1
        self._look_around()
        while (here := len(registry.here())) < enough:
            if here != said:
                self.log(f"waiting for clients: {here} of {enough} are here")
                said = here
            self.post.wait()
        registry.open_round(round_)

    def _here(self) -> list[int]:
        """The clients that can be asked now."""
        self._look_around()
        return self.post.registry.here()

    def _look_around(self) -> None:
        """Who is there; after a start, those who were there before have as long as a round to come back.

        So a server that was stopped asks those whom it would have asked.
        """
        post, registry = self.post, self.post.registry
        post.look_around()
        end = post.clock() + post.deadline
        if not registry.complete():
            self.log(f"waiting for those who were here before: clients {sorted(registry.missed)}")
        while not registry.complete() and post.clock() < end:
            post.wait()
        registry.missed.clear()

    def _look(self, requests: Mapping[int, bytes]) -> dict[int, float]:
        """The accuracies that clients report."""
        answers, refused = self.post.ask("evaluate", {client: {"blob": blob} for client, blob in requests.items()})
        reported = {client: letter.get("accuracy") for client, letter in answers.items()}
        accuracies = {
            client: value for client, value in reported.items() if isinstance(value, float) and 0 <= value <= 1
        }
        refused |= dict.fromkeys(reported.keys() - accuracies.keys(), "it reports no accuracy")
        for client, why in sorted(refused.items()):
            self.log(f"refused: client {client}, asked how good the model is: {why}")
        return accuracies


class Lines:
    """Tells a run in a line a round, and one for whatever was refused in it."""

    def __init__(self, say: Log) -> None:
        self.say = say

    def start(self, setup: Setup, history: Sequence[Mapping[str, Any]]) -> None:
        """What begins, or goes on."""
        went_on = f", going on after round {len(history)}" if history else ""
        self.rounds = setup.experiment.training.rounds
        self.say(f"{setup.experiment.algorithm_name}, {setup.model.n:,} parameters, {self.rounds} rounds{went_on}")

    def round(self, record: Mapping[str, Any]) -> None:
        """What came of a round."""
        for change in record.get("membership", []):
            self.say(f"{change['what']}: clients {change['clients']}, {change['why']}")
        for client, why in record.get("refused", {}).items():
            self.say(f"refused: client {client}: {why}")
        if record.get("forgot"):
            self.say(
                "no reply was of use for some rounds: the model stays, what clients are told besides it starts over"
            )
        clients = f"complete/incomplete/silent {record['complete']}/{record['incomplete']}/{record['inactive']}"
        accuracy = f", accuracy {100 * record['accuracy']:.1f} %" if record.get("accuracy") is not None else ""
        sent = f"{record['bytes_up']:,} B up, {record['bytes_down']:,} B down"
        self.say(f"round {record['round'] + 1}/{self.rounds}: {clients}, {sent}{accuracy}")

    def end(self, summary: Mapping[str, Any]) -> None:
        """The server says the rest."""


def _printed(line: str) -> None:
    print(f"efl: {line}", flush=True)
