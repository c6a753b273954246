"""What clients minimise, what is measured and how they step: by the experiment's names, or the user's own objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from efl.config import CUSTOM
from efl.config_sections import TrainingSection
from efl.errors import UserError
from efl.plugins import Registry
from efl.settings import Settings
from efl.training.optimisers import OPTIMISERS, Optimiser, OptimiserLike, optimiser_of
from efl.training.tasks import TASKS, Objective
from efl.training.tasks.objective import Loss, Metrics


@dataclass(frozen=True, eq=False)
class Learning:
    """Loss, metrics and optimiser that the user brought; None for what the experiment names."""

    loss: Loss | None = None
    metrics: Metrics | None = None
    optimiser: OptimiserLike | None = None

    def described(self) -> dict[str, Any]:
        """The same as keys of [training], with ``custom`` for functions and objects that have no name."""
        found: dict[str, Any] = {}
        if self.loss is not None:
            found["loss"] = _table(self.loss, TASKS)
        if self.metrics is not None:
            names = [self.metrics] if isinstance(self.metrics, str) else self.metrics
            named = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
            found["metrics"] = tuple(names) if named else (CUSTOM,)
        if self.optimiser is not None:
            found["optimiser"] = _table(self.optimiser, OPTIMISERS)
        return found

    def objective(self, training: TrainingSection, y: Tensor | None = None) -> Objective:
        """What clients minimise and what is measured, for the targets ``y``."""
        loss = _given("loss", self.loss, training.loss)
        metrics = _given("metrics", self.metrics, training.metrics)
        return Objective.of(loss, metrics, y)

    def stepping(self, training: TrainingSection) -> Optimiser:
        """How clients step."""
        return optimiser_of(_given("optimiser", self.optimiser, training.optimiser))


NAMED = Learning()


def _given(key: str, own: Any, named: Any) -> Any:
    if own is not None:
        return own
    if named in (CUSTOM, (CUSTOM,)):
        raise UserError(f"this run has {key} of your own; pass them: efl.resume(DIR, {key}=…)")
    return named


def _table(thing: Any, registry: Registry[Any]) -> Any:
    """How the experiment file writes a thing that a registry knows."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, Mapping):
        return dict(thing)
    name = next((name for name, known in registry.items() if known is type(thing)), None)
    if name is None or not isinstance(thing, Settings):
        return CUSTOM
    settings = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(thing).items()}
    return {"name": name, **{key: value for key, value in settings.items() if value is not None}}
