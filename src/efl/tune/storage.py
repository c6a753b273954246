"""Where a search is kept: a journal of Optuna's, a file for each algorithm, to which every trial is appended."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from efl.errors import UserError, reason

if TYPE_CHECKING:
    import optuna

Direction = Literal["maximize", "minimize"]
NEEDED = 4  # trials, before any is pruned


def optuna_module() -> Any:
    """Optuna, if it is installed."""
    try:
        import optuna
    except ImportError:
        raise UserError("the search for hyper-parameters needs Optuna: pip install 'elastic-fl[tune]'") from None
    return optuna


@contextmanager
def quietly() -> Iterator[None]:
    """Within, Optuna logs nothing but warnings; outside, what it logs is none of our business."""
    optuna = optuna_module()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


@dataclass(frozen=True)
class Journal:
    """The file of one algorithm's search.

    Attributes:
        path: The file.
        direction: Whether larger values are better.
        warm_up: Rounds in which no trial is pruned.
    """

    path: Path
    direction: Direction = "maximize"
    warm_up: int = 0

    def study(self) -> optuna.Study:
        """The search as far as it got; a new one if there is none."""
        library = optuna_module()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        pruner = library.pruners.MedianPruner(n_startup_trials=NEEDED, n_warmup_steps=self.warm_up)
        with quietly():
            try:
                backend = library.storages.journal.JournalFileBackend(str(self.path))
                storage = library.storages.JournalStorage(backend)
                study: optuna.Study = library.create_study(
                    storage=storage,
                    pruner=pruner,
                    study_name=self.path.stem,
                    direction=self.direction,
                    load_if_exists=True,
                )
            except (ValueError, KeyError) as error:  # a line that is no JSON, or no entry of a journal
                raise UserError(f"{self.path}: damaged ({reason(error)}); delete it to search anew") from None
        return study

    def trial(self, study: optuna.Study, number: int) -> optuna.Trial:
        """A trial that has begun, to report to."""
        trial: optuna.Trial = optuna_module().trial.Trial(study, study.trials[number]._trial_id)
        return trial


def described(thing: Any) -> str:
    """Anything as text that is the same for the same thing."""
    return json.dumps(thing, sort_keys=True, default=str)
