"""From an experiment, or from the user's own objects, to everything a run needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

from torch import nn

from efl.algorithms import Algorithm, create
from efl.client.grouping import rows_at_once, worker_processes
from efl.client.host import ClientHost
from efl.config import CUSTOM, Experiment
from efl.errors import UserError
from efl.federation import Federation
from efl.federation.lazy import known
from efl.federation.sources import find_source
from efl.fleet import Fleet
from efl.models import FlatModel, Task
from efl.models import build as build_network
from efl.plugins import load_plugin
from efl.processes import single_threaded
from efl.rng import Purpose, torch_seed
from efl.runs.asynchronous import buffered, check_asynchronous
from efl.runs.checks import check_algorithm, check_fit
from efl.runs.data import DataCache, data_resolved
from efl.runs.defended import defended, share_cap
from efl.runs.described import resolved
from efl.runs.device import device_named
from efl.runs.evaluation import EvaluationSchedule
from efl.runs.hostility import claimed, poisoned, with_hostile, without_absent
from efl.runs.learning import NAMED, Learning
from efl.runs.network import flat_model
from efl.runs.privacy import fitted
from efl.server.client_table import ClientTable
from efl.server.coordinator import Coordinator
from efl.server.limits import NormLimits
from efl.server.membership import membership_of
from efl.server.records import TrainingSettings
from efl.server.round_end import RoundEnd
from efl.server.sampling import SAMPLERS
from efl.settings import make
from efl.training.backends.selection import Backend, select_backend
from efl.training.optimisers import Optimiser
from efl.training.schedules import Schedule, schedule
from efl.training.tasks import Objective
from efl.training.trainer import Trainer
from efl.transport.local import LocalTransport
from efl.transport.torchrun import RankedHosts, ranks, serve


@dataclass(frozen=True, eq=False)
class Setup(ABC):
    """A run's ingredients; ``experiment`` describes them completely, but for what the user brought along."""

    experiment: Experiment
    algorithm: Algorithm
    fleet: Fleet

    @property
    @abstractmethod
    def model(self) -> FlatModel:
        """The network."""

    @property
    def backend_name(self) -> str:
        """What trains the model on this machine; nothing if nothing does."""
        return ""

    @property
    @abstractmethod
    def dataset(self) -> str:
        """What the clients train on."""

    @property
    @abstractmethod
    def clients(self) -> int:
        """How many clients there are, at most."""

    @property
    @abstractmethod
    def evaluation(self) -> EvaluationSchedule:
        """When models are evaluated."""

    @abstractmethod
    def coordinator(self, state: Path | None = None) -> Coordinator:
        """A coordinator with a transport to its clients, which keep their rows in the file ``state``."""

    @property
    def objective(self) -> Objective:
        """What clients minimise, and what they report."""
        return NAMED.objective(self.experiment.training)

    @property
    def optimiser(self) -> Optimiser:
        """How clients step."""
        return NAMED.stepping(self.experiment.training)

    @property
    def training(self) -> TrainingSettings:
        """What all rounds have in common."""
        training = self.experiment.training
        return TrainingSettings(
            training.cohort,
            training.local_steps,
            training.batch_size,
            training.learning_rate,
            _schedule(self.experiment),
            training.restart,
            training.seed,
            self.optimiser,
            self.objective.task.in_nats,
            training.buffer,
            training.rounds,
        )


@dataclass(frozen=True, eq=False)
class LocalSetup(Setup):
    """A run whose clients are simulated, on this machine or on the ranks of torchrun."""

    federation: Federation
    backend: Backend
    learning: Learning = NAMED

    @cached_property
    def objective(self) -> Objective:
        """What clients minimise, and what they report."""
        return self.learning.objective(self.experiment.training, known(self.federation.y))

    @cached_property
    def optimiser(self) -> Optimiser:
        """How clients step."""
        return self.learning.stepping(self.experiment.training)

    @property
    def model(self) -> FlatModel:
        """The network."""
        return self.backend.model

    @property
    def backend_name(self) -> str:
        """What trains the model."""
        return self.backend.name

    @property
    def dataset(self) -> str:
        """The name of the federation."""
        return self.federation.name

    @property
    def clients(self) -> int:
        """How many clients the federation has."""
        return len(self.federation)

    @cached_property
    def evaluation(self) -> EvaluationSchedule:
        """When models are evaluated."""
        samples = sum(map(len, self.federation.test))
        return EvaluationSchedule.of(self.experiment.training, self.clients, samples)

    def coordinator(self, state: Path | None = None) -> Coordinator:
        """A coordinator of simulated clients, which keep their rows in the file ``state``."""
        training, fleet, host = self.experiment.training, self.fleet, self.host(state)
        table = ClientTable.of(claimed(self.federation.sizes, fleet, training.seed), share_cap(self.algorithm))
        members = membership_of(fleet, table.shares, training.seed, training.local_steps, training.rounds)
        members = without_absent(members, fleet, training.seed)
        clock = fleet.clock(self.clients, first_upload=4 * self.model.n)
        hosts = RankedHosts(host, state) if ranks() > 1 else with_hostile(host, fleet, self.clients, training.seed)
        limits = None if fleet.attack is None else NormLimits(self.experiment.network.norm_bound)
        transport = LocalTransport(hosts, fleet, training.seed, training.local_steps, clock)
        sampler, end = SAMPLERS[fleet.selection], RoundEnd(fleet.deadline, training.buffer)
        return Coordinator(self.algorithm, self.model, self.training, table, sampler, members, transport, end, limits)

    def host(self, state: Path | None = None) -> ClientHost:
        """The host of this process's clients."""
        return ClientHost(self.algorithm, self.trainer, self.workers, state, self.experiment.engine.worker_timeout)

    def follow(self) -> None:
        """Be another rank than the one that leads the run, until it is over."""
        with single_threaded():
            serve(self.host)

    @property
    def trainer(self) -> Trainer:
        """The model and the data to train it on."""
        training, engine = self.experiment.training, self.experiment.engine
        rows = rows_at_once(self.backend, training.cohort) if engine.rows == "auto" else engine.rows
        trainer = Trainer(self.backend, self.federation, training.seed, rows)
        return replace(trainer, metrics=self.objective.metrics, optimiser=self.optimiser)

    @property
    def workers(self) -> int:
        """How many processes train."""
        wanted, training = self.experiment.engine.workers, self.experiment.training
        if wanted not in ("auto", 1) and self.model.device.type != "cpu":
            raise UserError("engine.workers: one process per CUDA device; share the work of several with torchrun")
        samples = training.batch_size * training.local_steps
        return worker_processes(self.backend, training.cohort, samples) if wanted == "auto" else wanted


def build(
    experiment: Experiment,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    fleet: Fleet | None = None,
    data: DataCache | None = None,
    learning: Learning = NAMED,
    *,
    deployed: bool = False,
) -> LocalSetup:
    """Build what ``experiment`` names, taking the user's own objects where given, and data from ``data``.

    ``deployed`` if it is for a client on a network.

    Returns:
        The ingredients of a run, checked; their experiment has every setting resolved.

    Raises:
        UserError: Something named does not exist, or does not fit the rest.
    """
    for file in experiment.plugins:
        load_plugin(file)
    algorithm = algorithm_of(experiment) if algorithm is None else algorithm
    check_algorithm(algorithm)
    algorithm = buffered(defended(algorithm, experiment.training.robust), experiment.training)
    fleet = fleet or _fleet(experiment)
    check_asynchronous(experiment.training, algorithm, fleet, simulated=not deployed)
    if federation is None:
        experiment = data_resolved(experiment)
        federation = (data or DataCache()).load(experiment)
    else:
        experiment = experiment.with_values(federation={"dataset": CUSTOM, "clients": len(federation)})
    algorithm = fitted(algorithm, len(federation), experiment.training, fleet)
    experiment = resolved(experiment.with_values(training=learning.described()), algorithm, fleet)
    _schedule(experiment)
    fleet.check(len(federation), experiment.training.seed)
    federation = poisoned(federation, fleet, experiment.training.seed)
    name = CUSTOM if module is not None else _network_name(experiment, federation)
    if module is None:
        task = Task(federation.input_shape, federation.classes, federation.vocabulary)
        module = build_network(name, task, torch_seed(experiment.training.seed, Purpose.MODEL))
    experiment = experiment.with_values(model={"name": name})
    model = flat_model(module, experiment, algorithm, device_named(experiment.engine.device))
    batch_size, objective = experiment.training.batch_size, learning.objective(experiment.training, known(federation.y))
    learning.stepping(experiment.training)
    check_fit(model, federation, batch_size, objective, algorithm)
    native = experiment.engine.compile
    backend = select_backend(model, federation, batch_size, native=native, task=objective.task)
    return LocalSetup(experiment, algorithm, fleet, federation, backend, learning)


def algorithm_of(experiment: Experiment, *, deployed: bool = False) -> Algorithm:
    """The algorithm that an experiment names, with its transformations; plug-ins are loaded before."""
    for file in experiment.plugins:
        load_plugin(file)
    transforms = [one.model_dump() for one in experiment.transform]
    algorithm = create(experiment.algorithm_name, experiment.algorithm_settings, transforms, experiment.codec)
    return buffered(defended(algorithm, experiment.training.robust, deployed=deployed), experiment.training)


def _schedule(experiment: Experiment) -> Schedule:
    training = experiment.training
    return schedule(training.schedule, training.decay, training.local_steps, training.rounds, training.warmup)


def _fleet(experiment: Experiment) -> Fleet:
    if CUSTOM in (experiment.fleet.get("straggler_steps"), experiment.fleet.get("inactive")):
        raise UserError("this run has a fleet with functions of your own; pass it: efl.resume(DIR, fleet=…)")
    return cast(Fleet, make(Fleet, experiment.fleet, "fleet"))


def _network_name(experiment: Experiment, federation: Federation) -> str:
    name = experiment.model.name
    if name == CUSTOM:
        raise UserError("this run trains a model of your own; pass it: efl.resume(DIR, model=…)")
    if name == "auto":
        try:
            name = find_source(federation.name).network
        except UserError:  # the user's own data, under a name of its own
            name = "mlp"
    return name
