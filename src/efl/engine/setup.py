"""From an experiment, or from the user's own objects, to everything a run needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from torch import nn

from efl.algorithms import ALGORITHMS, Algorithm, create
from efl.config import CUSTOM, Experiment
from efl.engine.client import ClientHost
from efl.engine.coordinator import Coordinator, Plan
from efl.engine.roster import Roster
from efl.engine.transport import LocalTransport
from efl.engine.work import Workshop, auto_rows
from efl.errors import UserError
from efl.federation import Federation, load
from efl.federation.sources import find_source
from efl.fleet import Fleet
from efl.models import FlatModel, build
from efl.rng import Purpose, torch_seed
from efl.validation import make


@dataclass(frozen=True, eq=False)
class Setup:
    """A run's ingredients; ``experiment`` describes them completely, but for what the user brought along."""

    experiment: Experiment
    federation: Federation
    model: FlatModel
    algorithm: Algorithm
    fleet: Fleet

    def assemble(self) -> tuple[Coordinator, ClientHost]:
        """A coordinator, and the clients it talks to, in this process."""
        training, engine = self.experiment.training, self.experiment.engine
        rows = auto_rows(self.model, training.cohort) if engine.rows == "auto" else engine.rows
        host = ClientHost(self.algorithm, Workshop(self.model, self.federation, training.seed, rows))
        plan = Plan(
            training.cohort,
            training.local_steps,
            training.batch_size,
            training.learning_rate,
            training.decay,
            training.seed,
        )
        transport = LocalTransport(host, self.fleet, training.seed, training.local_steps)
        roster = Roster.of(self.federation.sizes)
        return Coordinator(self.algorithm, self.model, self.fleet, plan, roster, transport), host


def prepare(
    experiment: Experiment,
    federation: Federation | None = None,
    module: nn.Module | None = None,
    algorithm: Algorithm | None = None,
    fleet: Fleet | None = None,
) -> Setup:
    """Build what ``experiment`` names, taking the user's own objects where given."""
    algorithm = algorithm or create(experiment.algorithm_name, experiment.algorithm_settings)
    if fleet is None:
        made = make(Fleet, experiment.fleet, "fleet")
        assert isinstance(made, Fleet)
        fleet = made
    spelt_out = {"name": _name(experiment, algorithm), **_settings(algorithm)}
    experiment = experiment.model_copy(update={"algorithm": spelt_out, "fleet": _settings(fleet)})
    section, seed = experiment.federation, experiment.training.seed
    if federation is None:
        if section.dataset == CUSTOM:
            raise UserError("this run trains on data of your own; pass them: efl.resume(DIR, federation=…)")
        federation = load(
            section.dataset, section.clients, section.partition, test_fraction=section.test_fraction, seed=seed
        )
    else:
        experiment = experiment.with_values(federation={"dataset": CUSTOM, "clients": len(federation)})
    fleet.check(len(federation))
    if module is None:
        module = _network(experiment, federation, seed)
    else:
        experiment = experiment.with_values(model={"name": CUSTOM})
    model = FlatModel(module)
    _try_out(model, federation)
    return Setup(experiment, federation, model, algorithm, fleet)


def _network(experiment: Experiment, federation: Federation, seed: int) -> nn.Module:
    name = experiment.model.name
    if name == CUSTOM:
        raise UserError("this run trains a model of your own; pass it: efl.resume(DIR, model=…)")
    if name == "auto":
        name = "mlp" if federation.name == CUSTOM else find_source(federation.name).network
    return build(name, federation.input_shape, federation.classes, torch_seed(seed, Purpose.MODEL))


def _try_out(model: FlatModel, federation: Federation) -> None:
    """A model that does not fit the data is the user's mistake; tell it as one line, before training."""
    try:
        outputs = model.outputs(model.w, model.buffers, federation.x[:2])
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the model does not take samples of shape {federation.input_shape}: {reason}") from None
    if outputs.dim() != 2 or outputs.shape[1] < federation.classes:
        raise UserError(
            f"the model gives outputs of shape {tuple(outputs.shape[1:])}; the data have {federation.classes} classes"
        )


def _name(experiment: Experiment, algorithm: Algorithm) -> str:
    """The name to report: the experiment's if it made the algorithm, the class's otherwise."""
    own = type(algorithm).__name__
    known = {cls.__name__: name for name, cls in ALGORITHMS.items()}
    if known.get(own) == experiment.algorithm_name.partition(":")[0]:
        return experiment.algorithm_name
    return known.get(own, own.lower())


def _settings(value: object) -> Mapping[str, Any]:
    """The fields of a settings object as they stand in a file; functions are told by their name."""
    fields = asdict(value) if is_dataclass(value) and not isinstance(value, type) else {}
    plain = {key: list(item) if isinstance(item, tuple) else item for key, item in fields.items()}
    return {key: getattr(item, "__name__", CUSTOM) if callable(item) else item for key, item in plain.items()}
