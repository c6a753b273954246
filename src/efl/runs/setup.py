"""From an experiment, or from the user's own objects, to everything a run needs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from efl.algorithms import Algorithm, create, name_of, transform_tables
from efl.training.schedules import schedule
from efl.config import CUSTOM, Experiment, Transformation
from efl.client.host import ClientHost
from efl.server.coordinator import Coordinator
from efl.processes import single_threaded
from efl.transport.torchrun import FollowingHost, LeadingHost, ranks
from efl.server.client_table import ClientTable
from efl.server.membership import membership_of
from efl.server.sampling import SAMPLERS
from efl.server.records import Plan
from efl.transport.local import LocalTransport
from efl.client.grouping import rows_at_once, worker_processes
from efl.training.backends.selection import Backend, Eager, select_backend
from efl.training.trainer import Trainer
from efl.errors import UserError, first_line
from efl.federation import Federation, load
from efl.federation.prepared import data_directory
from efl.federation.sources import find_source
from efl.fleet import Fleet
from efl.models import FlatModel, Task, build
from efl.plugins import load_plugin
from efl.rng import Purpose, seeded_torch, torch_seed
from efl.settings import make

log = logging.getLogger("efl")



@dataclass(frozen=True, eq=False)
class Setup:
    """A run's ingredients; ``experiment`` describes them completely, but for what the user brought along."""

    experiment: Experiment
    federation: Federation
    backend: Backend
    algorithm: Algorithm
    fleet: Fleet

    def assemble(self, state: Path | None = None) -> tuple[Coordinator, ClientHost]:
        """A coordinator, and the clients it talks to; what clients keep goes into the file ``state``."""
        training, plan = self.experiment.training, self.plan
        host = (LeadingHost if ranks() > 1 else ClientHost)(self.algorithm, self.trainer, self.workers, state)
        table = ClientTable.of(self.federation.sizes)
        members = membership_of(self.fleet, table.shares, training.seed, training.local_steps, training.rounds)
        clock = self.fleet.clock(len(self.federation), first_upload=4 * self.model.n)
        transport = LocalTransport(host, self.fleet, training.seed, training.local_steps, clock)
        return Coordinator(self.algorithm, self.model, SAMPLERS[self.fleet.selection], plan, table, transport, members, clock), host

    @property
    def model(self) -> FlatModel:
        """The network."""
        return self.backend.model

    @property
    def plan(self) -> Plan:
        """What training asks of rounds."""
        training = self.experiment.training
        return Plan(
            training.cohort,
            training.local_steps,
            training.batch_size,
            training.learning_rate,
            schedule(training.schedule, training.decay, training.local_steps),
            training.restart,
            training.seed,
        )

    def follow(self) -> None:
        """Be another rank than the one that leads the run, until it is over."""
        with single_threaded():
            FollowingHost.told(self.algorithm, self.trainer, self.workers).serve()

    @property
    def trainer(self) -> Trainer:
        """Where local work is made."""
        training, engine = self.experiment.training, self.experiment.engine
        rows = rows_at_once(self.backend, training.cohort) if engine.rows == "auto" else engine.rows
        return Trainer(self.backend, self.federation, training.seed, rows)

    @property
    def workers(self) -> int:
        """How many processes do it."""
        wanted = self.experiment.engine.workers
        if wanted not in ("auto", 1) and self.model.device.type != "cpu":
            raise UserError("engine.workers: one process a CUDA device; share the work of several with torchrun")
        training = self.experiment.training
        samples = training.local_steps * training.batch_size
        return worker_processes(self.backend, training.cohort, samples) if wanted == "auto" else wanted


def prepare(
    experiment: Experiment,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    fleet: Fleet | None = None,
    data: DataCache | None = None,
) -> Setup:
    """Build what ``experiment`` names, taking the user's own objects where given, and data from ``data``."""
    for file in experiment.plugins:
        load_plugin(file)
    algorithm = algorithm or create(
        experiment.algorithm_name, experiment.algorithm_settings, [one.model_dump() for one in experiment.transform]
    )
    if fleet is None:
        if CUSTOM in (experiment.fleet.get("straggler_steps"), experiment.fleet.get("inactive")):
            raise UserError("this run has a fleet with functions of your own; pass it: efl.resume(DIR, fleet=…)")
        made = make(Fleet, experiment.fleet, "fleet")
        assert isinstance(made, Fleet)
        fleet = made
    experiment = spelt_out(experiment, algorithm, fleet)
    section, seed = experiment.federation, experiment.training.seed
    if federation is None:
        if section.dataset == CUSTOM:
            raise UserError("this run trains on data of your own; pass them: efl.resume(DIR, federation=…)")
        source = find_source(section.dataset)
        settled = {"partition": source.partition} if section.partition == "auto" else {}
        if source.read is not None:  # a run goes on from whatever folder it is resumed in
            settled["data_dir"] = str(data_directory(section.data_dir).absolute())
        experiment = experiment.with_values(federation=settled)
        section = experiment.federation
        federation = (data or DataCache()).load(experiment)
    else:
        experiment = experiment.with_values(federation={"dataset": CUSTOM, "clients": len(federation)})
    fleet.check(len(federation), seed)
    if module is None:
        name = _network_name(experiment, federation)
        task = Task(federation.input_shape, federation.classes, federation.vocabulary)
        module = build(name, task, torch_seed(seed, Purpose.MODEL))
    else:
        name = CUSTOM
    experiment = experiment.with_values(model={"name": name})
    model = FlatModel(module, device_named(experiment.engine.device))
    _try_out(model, federation, experiment.training.batch_size)
    backend = select_backend(model, federation, experiment.training.batch_size, native=experiment.engine.compile)
    return Setup(experiment, federation, backend, algorithm, fleet)


class DataCache:
    """The federations loaded last, so that several runs in one process load each data set once."""

    SIZE = 4

    def __init__(self) -> None:
        self._loaded: dict[object, Federation] = {}

    def load(self, experiment: Experiment) -> Federation:
        """The federation that a resolved experiment names."""
        section, seed = experiment.federation, experiment.training.seed
        if (section, seed) in self._loaded:
            return self._loaded[section, seed]
        federation = load(
            section.dataset,
            section.clients,
            section.partition,
            test_fraction=section.test_fraction,
            seed=seed,
            data_dir=section.data_dir,
        )
        if section.evaluate_on == "validation":
            federation = federation.for_tuning(section.test_fraction, seed)
        if len(self._loaded) == self.SIZE:
            del self._loaded[next(iter(self._loaded))]
        self._loaded[section, seed] = federation
        return federation


def spelt_out(experiment: Experiment, algorithm: Algorithm, fleet: Fleet) -> Experiment:
    """The experiment with every setting of its algorithm and fleet; its schedule is checked, too."""
    schedule(experiment.training.schedule, experiment.training.decay, experiment.training.local_steps)
    named = {"name": _name(experiment, algorithm), **_settings(algorithm)}
    transforms = tuple(Transformation(**table) for table in transform_tables(algorithm))
    return experiment.model_copy(update={"algorithm": named, "transform": transforms, "fleet": _settings(fleet)})


def device_named(name: str) -> torch.device:
    """The device to compute on; ``cuda`` without a number is the one of this process among those torchrun started."""
    if name == "cpu":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise UserError(f"engine.device is {name!r}, but PyTorch finds no CUDA device here; use 'cpu'")
    count = torch.cuda.device_count()
    number = int(name.partition(":")[2] or int(os.environ.get("LOCAL_RANK", 0)) % count)
    if number >= count:
        raise UserError(f"engine.device is {name!r}, but there are only {count} CUDA devices here, counted from 0")
    return torch.device("cuda", number)


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


def _try_out(model: FlatModel, federation: Federation, batch_size: int) -> None:
    """A model that does not fit the data is the user's mistake; tell it as one line, before training."""
    x, y = (part[None].to(model.device) for part in federation.batch(torch.arange(batch_size) % len(federation.x)))
    answer_shape = (*y.shape[1:], federation.classes)
    try:
        outputs = model.outputs(model.w, model.buffers, x[0])
        with seeded_torch(0):
            if _fits(outputs, answer_shape):
                Eager(model).rows(model.w, 1).gradient(1, x, y)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = first_line(error)
        shape = (batch_size, *federation.input_shape)
        raise UserError(f"the model cannot be trained on batches of shape {shape}: {reason}") from None
    if not _fits(outputs, answer_shape):
        raise UserError(
            f"the model gives outputs of shape {tuple(outputs.shape[1:])}; "
            f"the data, with {federation.classes} classes, need {answer_shape[1:]}"
        )


def _fits(outputs: Tensor, expected: tuple[int, ...]) -> bool:
    """Whether the outputs have a score for every class, at every position if there are several."""
    return outputs.dim() == len(expected) and outputs.shape[:-1] == expected[:-1] and outputs.shape[-1] >= expected[-1]


def _name(experiment: Experiment, algorithm: Algorithm) -> str:
    """The name to report: the experiment's if it made the algorithm, that of its class otherwise."""
    name = name_of(algorithm)
    return experiment.algorithm_name if experiment.algorithm_name.partition(":")[0] == name else name


def _settings(value: object) -> Mapping[str, Any]:
    """The fields of a settings object as they stand in a file; a function of the user's own is `custom`."""
    fields = asdict(value) if is_dataclass(value) and not isinstance(value, type) else {}
    return {key: CUSTOM if callable(item) else _listed(item) for key, item in fields.items() if item is not None}


def _listed(item: Any) -> Any:
    """With lists for tuples at every depth, as a file has them."""
    if isinstance(item, Mapping):
        return {key: _listed(value) for key, value in item.items()}
    return [_listed(value) for value in item] if isinstance(item, tuple) else item
