"""The ServerApp: the coordinator that `efl run` has, with clients behind Flower."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from efl.algorithms.base import Algorithm
from efl.algorithms.fitting import privacy_of
from efl.config import CUSTOM, Experiment
from efl.errors import UserError
from efl.fleet import Fleet
from efl.flower.activity import ActivityFile
from efl.flower.config import MakeModel, experiment_of, fleet_of
from efl.flower.mailbox import Log, Mailbox
from efl.flower.oversampling import Oversampler
from efl.flower.transport import FlowerTransport
from efl.models import FlatModel
from efl.reading import DamagedError, read_text, readable
from efl.runs.asynchronous import check_asynchronous
from efl.runs.checks import check_private
from efl.runs.defended import share_cap
from efl.runs.described import resolved
from efl.runs.directory import RunDirectory
from efl.runs.evaluation import EvaluationSchedule
from efl.runs.loop import Observer, Run
from efl.runs.network import flat_model
from efl.runs.privacy import fitted
from efl.runs.result import Result
from efl.runs.setup import Setup, algorithm_of
from efl.server.abandonment import rule_of
from efl.server.client_table import ClientTable
from efl.server.coordinator import Coordinator
from efl.server.limits import NormLimits
from efl.server.membership import LiveMembership
from efl.server.records import TrainingSettings
from efl.server.registry import Registry
from efl.server.round_end import RoundEnd
from efl.server.sampling import SAMPLERS, Sampler
from efl.storage import write_atomically
from efl.track.progress import PlainProgress
from efl.track.trackers import trackers
from efl.wire import NO_MODEL
from efl.wire import Context as CodingContext

LONGEST_NAME = 64
PREDECESSOR = 60.0  # seconds in which a server whose SuperLink died has noticed it and is gone


def server_app(make_model: MakeModel, observers: Callable[[], Sequence[Observer]] = lambda: ()) -> ServerApp:
    """A ServerApp that trains ``make_model(experiment)`` with the clients that come online."""
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
    """Run an experiment to its end, or resume the one in ``network.directory``."""
    experiment = experiment_of(run_config)
    say = log or _printed
    setup, directory = build_server(grid, experiment, make_model, say)
    watching = [PlainProgress(say, every_round=True), *observers, *trackers(experiment.track, directory.path)]
    result = Run(setup, directory, watching, patience=PREDECESSOR).execute()
    say(f"finished: {result.summary['rounds']} rounds, model_sha256 {result.summary['model_sha256']}")
    return result


def build_server(
    grid: Any, experiment: Experiment, make_model: MakeModel, log: Log
) -> tuple[FlowerSetup, RunDirectory]:
    """What the server needs, and the directory of its run, which may exist already."""
    fleet = fleet_of(experiment)
    algorithm = _algorithm(experiment, fleet, defended=_defended(Path(experiment.network.directory)))
    check_asynchronous(experiment.training, algorithm, fleet, simulated=False)
    experiment = resolved(experiment, algorithm, fleet)
    experiment = experiment.with_values(federation={"dataset": CUSTOM}, model={"name": CUSTOM})
    network, clients = experiment.network, experiment.federation.clients
    where = Path(network.directory)
    directory = RunDirectory.open(where) if (where / "config.toml").exists() else RunDirectory.create(where, experiment)
    _check_same(experiment, algorithm, directory, fleet)
    if directory.read_summary() is not None:
        raise UserError(f"{where} holds a run that is finished; set network.directory to a new one")
    model = flat_model(make_model(experiment), experiment, algorithm)
    check_private(model, algorithm)
    registry = Registry(clients, network.patience, directory.path / "clients.json")
    name, note = run_name(directory.name), ActivityFile(directory.path)
    late = experiment.training.buffer is not None
    mailbox = Mailbox(grid, registry, name, network.deadline, log, rejoin=network.rejoin, note=note, keeps_late=late)
    return FlowerSetup(experiment, algorithm, fleet, model, mailbox), directory


def _algorithm(experiment: Experiment, fleet: Fleet, *, defended: bool) -> Algorithm:
    algorithm = algorithm_of(experiment, deployed=defended)
    return fitted(algorithm, experiment.federation.clients, experiment.training, fleet)


def _defended(where: Path) -> bool:
    """Whether the run is defended unless the experiment says otherwise: all are but those begun before that was so."""
    begun = (where / "config.toml").exists()
    return not begun or any(one.name == "defence" for one in RunDirectory.open(where).experiment().transform)


def _check_same(experiment: Experiment, algorithm: Algorithm, directory: RunDirectory, fleet: Fleet) -> None:
    """See that a directory holds this experiment; settings that its version of the program did not know are as now."""
    there = directory.experiment()
    now = {"network": experiment.network, "algorithm": experiment.algorithm}
    found = there.model_copy(update={**now, "fleet": {**experiment.fleet, **there.fleet}})
    if found != experiment or _algorithm(there, fleet, defended=False) != algorithm:
        hint = (
            "; runs of elastic-fl 0.1 go on with algorithm.name = 'efl:2021'" if "density_up" in there.algorithm else ""
        )
        raise UserError(f"{directory.path} holds another experiment; set network.directory to a new one{hint}")


def run_name(path: Path) -> str:
    """The name of the run, by which clients know it too; it stays the same when the server is restarted."""
    if not os.path.lexists(path):
        write_atomically(path, secrets.token_hex(8).encode())
    with readable(path, "delete it to go on under a new name; clients then begin without what they kept"):
        name = read_text(path).strip()
        if not (name.isascii() and name.isalnum() and len(name) <= LONGEST_NAME):
            raise DamagedError(f"{name!r:.40} is not the name of a run")
        return name


@dataclass(frozen=True, eq=False)
class FlowerSetup(Setup):
    """A run whose clients are behind Flower."""

    network: FlatModel
    mailbox: Mailbox

    @property
    def model(self) -> FlatModel:
        """The network."""
        return self.network

    @property
    def dataset(self) -> str:
        """Only the clients know."""
        return "the clients' data"

    @property
    def clients(self) -> int:
        """As many as the experiment has places for."""
        return self.experiment.federation.clients

    @property
    def evaluation(self) -> EvaluationSchedule:
        """When models are evaluated; how many test samples there are, only the clients know."""
        return EvaluationSchedule.of(self.experiment.training, self.clients, 0)

    @cached_property
    def training(self) -> TrainingSettings:
        """What all rounds have in common; with privacy, whom it samples and what noise it adds is the server's secret.

        A seed anew in each process: what was drawn before is never drawn again for other replies.
        """
        known = super().training
        return known if privacy_of(self.algorithm) is None else replace(known, seed=secrets.randbits(128))

    def coordinator(self, state: Path | None = None) -> Coordinator:
        """A coordinator that reaches its clients through the mailbox; they keep their state themselves."""
        registry, network, training = self.mailbox.registry, self.experiment.network, self.experiment.training
        table = ClientTable.of(registry.sizes, share_cap(self.algorithm, network.share_cap))
        rule = rule_of(self.fleet, table.shares, training.local_steps, training.rounds)
        drop = self.fleet.on_departure == "drop"
        members = LiveMembership(registry.calendar, rule, drop, partial(self._open_round, table))
        context = CodingContext(self.model.layout)
        transport = FlowerTransport(self.mailbox, context, max(1.0, network.deadline - network.margin), self.objective)
        sampler, end = self._sampler, RoundEnd(network.deadline, self.training.buffer)
        limits = NormLimits(network.norm_bound)
        return Coordinator(self.algorithm, self.model, self.training, table, sampler, members, transport, end, limits)

    @property
    def _sampler(self) -> Sampler:
        """Asks more clients where some do not reply; with privacy, how many are sampled is what it is accounted for."""
        sampler = SAMPLERS[self.fleet.selection]
        return sampler if self.fleet.selection == "poisson" else Oversampler(sampler)

    def _open_round(self, table: ClientTable, round_: int) -> None:
        """Wait for clients: before the first round for as many as were wanted, but not for ever; later for one."""
        network, registry = self.experiment.network, self.mailbox.registry
        if round_ < registry.opened:  # put back to an earlier round: what clients have may be of those given up
            table.version[:] = NO_MODEL
        wanted = self.experiment.training.cohort if network.wait_for == "auto" else network.wait_for
        self.mailbox.reachable()
        self.mailbox.wait_for_clients(1 if round_ > 0 else wanted, network.start_timeout)
        registry.open_round(round_)


def _printed(line: str) -> None:
    print(f"efl: {line}", flush=True)
