"""Callbacks: what a user adds to a run. `Callback` is the base class; early stopping, the best model and a CSV file.

A callback keeps no state of its own between processes: a resumed run gives it the rounds so far at the start, and what
it knows follows from them.
"""

from __future__ import annotations

import csv
import difflib
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from efl.errors import UserError
from efl.runs.directory import Record
from efl.runs.records import RENAMED

log = logging.getLogger("efl")

if TYPE_CHECKING:
    from efl.runs.loop import Run
    from efl.runs.setup import Setup

Mode = Literal["auto", "max", "min"]
SMALLER_IS_BETTER = ("loss", "up", "down", "seconds")  # figures of a round that are no metrics


class Callback:
    """Watches a run, and may end it; override what is needed.

    ``self.run`` is the run: ``self.run.module()`` is the model as it stands, ``self.run.history`` the records so far,
    ``self.run.directory`` the run directory, if there is one.

    >>> class Losses(Callback):
    ...     def round(self, record):
    ...         print(record["round"], record["sampled"])
    >>> import efl
    >>> result = efl.train(rounds=2, cohort=3, local_steps=1, callbacks=[Losses()])
    0 3
    1 3
    """

    run: Run

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """The run begins, or resumes after the rounds in ``history``."""

    def round(self, record: Record) -> bool | None:
        """A round is over, evaluated and written down; return True to end the run after it."""

    def end(self, summary: Record) -> None:
        """The run is over."""

    def close(self) -> None:
        """The run was left, by its end or by an error; give back what was taken."""

    def file(self, given: Path | None, usual: str) -> Path:
        """The file that was given, or one in the run directory; `UserError` if there is neither."""
        if given is not None:
            return given
        if self.run.directory is None:
            name = type(self).__name__
            raise UserError(f"{name}: say where its file goes: {name}(path), or train with out=…")
        return self.run.directory.path / usual


class _Best(Callback):
    """Follows a metric of the records, and knows the best value so far."""

    def __init__(self, metric: str | None = None, mode: Mode = "auto") -> None:
        if mode not in get_args(Mode):
            raise UserError(f"{type(self).__name__}: mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
        self._wanted, self._mode = metric, mode

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """Find out what is better, and follow the rounds so far."""
        objective = setup.objective
        self.merit = objective.merit
        self.metric = self._wanted or objective.merit
        known = objective.metrics.get(self.metric.removeprefix("personalised_"))
        smaller = self.metric.rpartition("_")[2] in SMALLER_IS_BETTER if known is None else not known.higher_is_better
        self.sign = -1.0 if self._mode == "min" or (self._mode == "auto" and smaller) else 1.0
        self.best, self.best_round, self.evaluations_since = -math.inf, -1, 0
        for record in history:
            self.improved(record)

    def improved(self, record: Record, by: float = 0.0) -> bool:
        """Whether the record has the metric, and it is better than before by more than ``by``."""
        value = record.get(self.metric)
        if value is None:
            self._check(record)
            return False
        if self.sign * value <= self.best + by:
            self.evaluations_since += 1
            return False
        self.best, self.best_round, self.evaluations_since = self.sign * value, record["round"], 0
        return True

    def _check(self, record: Record) -> None:
        """Refuse a metric that not even a round with an evaluation has, or may yet have of personalised models."""
        if self.merit in record and not {self.metric, self.metric.removeprefix("personalised_")} & record.keys():
            raise UserError(self._unknown([record]))

    def _unknown(self, records: Sequence[Record]) -> str:
        figures = {name for record in records for name, value in record.items() if _is_figure(value)}
        known = sorted(figures - RENAMED.keys())
        near = difflib.get_close_matches(self.metric, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"they have {', '.join(known)}"
        return f"{type(self).__name__}: no round has {self.metric!r}; {hint}"

    def end(self, summary: Record) -> None:
        """A metric that no record had, though it might, must not cost the run's result."""
        if self.best_round < 0 and self.run.history:
            log.warning("%s", self._unknown(self.run.history))


class EarlyStopping(_Best):
    """Ends a run when a metric has not improved for some evaluations.

    Args:
        metric: A figure of the records; by default the figure of merit of the global model.
        patience: How many evaluations in a row without a better value end the run.
        min_delta: How much better a value must be.
        mode: Whether larger (``max``) or smaller (``min``) is better; ``auto``: as the metric has it.

    >>> import efl
    >>> stop = EarlyStopping(patience=2, min_delta=1.0)  # no accuracy is better than another by more than 1
    >>> efl.train(rounds=9, cohort=3, local_steps=1, evaluate_every=1, callbacks=[stop]).summary["rounds"]
    3
    """

    def __init__(
        self,
        metric: str | None = None,
        patience: int = 3,
        *,
        min_delta: float = 0.0,
        mode: Mode = "auto",
    ) -> None:
        super().__init__(metric, mode)
        if patience < 1:
            raise UserError(f"EarlyStopping: patience must be at least 1, got {patience}")
        self.patience, self.min_delta = patience, min_delta

    def improved(self, record: Record, by: float = 0.0) -> bool:
        """Whether the metric is better than before by more than ``min_delta``."""
        return super().improved(record, by or self.min_delta)

    def round(self, record: Record) -> bool:
        """Stop after ``patience`` evaluations without a better value."""
        self.improved(record)
        return self.evaluations_since >= self.patience


class BestCheckpoint(_Best):
    """Keeps the best model of a run in a file, from which `efl.load_model` reads it.

    Args:
        path: The file; by default ``best.safetensors`` in the run directory.
        metric: A figure of the records; by default the figure of merit of the global model.
        mode: Whether larger (``max``) or smaller (``min``) is better; ``auto``: as the metric has it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        metric: str | None = None,
        *,
        mode: Mode = "auto",
    ) -> None:
        super().__init__(metric, mode)
        self._given = None if path is None else Path(path)

    @property
    def path(self) -> Path:
        """The file."""
        return self.file(self._given, "best.safetensors")

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """Follow the rounds so far, and see that the file has a folder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        super().start(setup, history)

    def round(self, record: Record) -> None:
        """Write the model if it is the best so far."""
        if self.improved(record):
            self.run.save_model(self.path)


class CSVFile(Callback):
    """Writes the figures of every round as a line of a CSV file.

    Args:
        path: The file; by default ``metrics.csv`` in the run directory.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._given = None if path is None else Path(path)

    def start(self, setup: Setup, history: Sequence[Record]) -> None:
        """Write the rounds so far, in place of whatever the file had."""
        self.path = self.file(self._given, "metrics.csv")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._rows, self._columns = [flat(record) for record in history], list[str]()
        self._write()

    def round(self, record: Record) -> None:
        """Add a line; a figure that is new adds a column, for which the file is written anew."""
        self._rows.append(flat(record))
        if set(self._rows[-1]) <= set(self._columns):
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(self._rows[-1])
        else:
            self._write()

    def _write(self) -> None:
        self._columns = list(dict.fromkeys(name for row in self._rows for name in row))
        with self.path.open("w", newline="") as file:
            table = csv.DictWriter(file, self._columns)
            table.writeheader()
            table.writerows(self._rows)


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The figures of a record in one row, those of its tables as ``table.name``; old names are left out.

    >>> flat({"round": 0, "bytes": {"up": {"update": 7}}, "aggregated": [1, 2], "asked": 3, "accuracy": None})
    {'round': 0, 'bytes.up.update': 7, 'accuracy': None}
    """
    row: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            row |= {} if name in ("clients", "rejected", "by_client") else flat(value, f"{prefix}{name}.")
        elif name not in RENAMED and not isinstance(value, list):
            row[prefix + name] = value
    return row


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
