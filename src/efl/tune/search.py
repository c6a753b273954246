"""The search for one algorithm: which run comes next, and which of those made is best.

Trial 0 is the experiment as it is. Later ones are drawn by Optuna's tree-structured Parzen estimator from those before
and may be pruned, so that the budget of client-steps lasts for more of them. The best few, and trial 0, are then run
with further seeds, and the best of those is chosen by these alone: the best of many trials with one seed is partly
luck, and this way the choice is never worse than the experiment as it is, on validation data.

All is in a journal, and every sample depends on the trials before it alone: a search that was killed goes on with the
run it was at, and ends as if it had never been stopped.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from efl.algorithms.search import Choice
from efl.config import Experiment
from efl.errors import UserError
from efl.runs.data import DataCache
from efl.runs.setup import build
from efl.tune.space import Dimension, Space, Values, applied, default_of, is_whole
from efl.tune.storage import Direction, Journal, described, optuna_module, quietly
from efl.tune.trials import Outcome, Trial

if TYPE_CHECKING:
    import optuna

FIRST_SEED = 1000  # added to the experiment's: none of the seeds that are reported later
EVALUATIONS, PERSONALISED_EVALUATIONS = 10, 4
RANDOM = 6  # trials, before the estimator has enough to go by
DIGITS = 3  # of a value that was drawn
ROUNDS = "rounds"  # names in the journal
EXPERIMENT = "experiment"


@dataclass(frozen=True)
class Effort:
    """How much is searched, the same for every algorithm.

    Attributes:
        trials: The budget of client-steps, in complete runs; what pruning saves goes to further trials.
        rounds: Of each run; None for as many as the experiment has.
        finalists: How many of the best trials are run with further seeds, besides the experiment as it is.
        confirmations: With how many seeds; 0 to choose by the trials themselves.
    """

    trials: int = 12
    rounds: int | None = None
    finalists: int = 2
    confirmations: int = 2


@dataclass(frozen=True)
class Tried:
    """A trial that ended."""

    number: int
    values: Values
    value: float | None  # None if it was pruned, or diverged
    rounds: int
    curve: Mapping[int, float]


@dataclass(frozen=True)
class Found:
    """What a search came to: values on validation data with further seeds, as the experiment was and as it is best."""

    experiment: Experiment
    values: Values
    default: Sequence[float]
    best: Sequence[float]


class Search:
    """The search for one algorithm.

    Args:
        label: Its name.
        experiment: What to start from.
        space: What to vary.
        effort: How much.
        out: Where the journal and unfinished runs are kept.
        data: Data that are loaded already.

    Raises:
        UserError: If the experiment cannot be run, or ``out`` has a search for this name in another experiment.
    """

    def __init__(
        self, label: str, experiment: Experiment, space: Space, effort: Effort, out: Path, data: DataCache | None = None
    ) -> None:
        self.label, self.experiment, self.space, self.effort, self.out = label, experiment, space, effort, out
        self.slug = "".join(sign if sign.isalnum() or sign in "-._" else "-" for sign in label)
        setup = build(self._validated({}, 0, personalised=False), data=data)
        self.personalised, objective = setup.algorithm.personalised, setup.objective
        self.share, self.higher_is_better = objective.share, objective.higher_is_better
        self.merit = f"personalised_{objective.merit}" if self.personalised else objective.merit
        direction: Direction = "maximize" if objective.higher_is_better else "minimize"
        self.journal = Journal(out / "search" / f"{self.slug}.journal", direction, self.rounds // 4)
        self._check_same()

    @property
    def rounds(self) -> int:
        """Of a complete run."""
        return self.effort.rounds or self.experiment.training.rounds

    @property
    def steps_per_round(self) -> int:
        """What clients are asked for in a round."""
        return self.experiment.training.replies * self.experiment.training.local_steps

    @cached_property
    def study(self) -> optuna.Study:
        """The search as far as it got."""
        return self.journal.study()

    def _check_same(self) -> None:
        searched = self._validated({}, 0).model_dump(exclude={"engine", "track", "network"})
        now = described([searched, self.space, self.rounds])
        if self.study.user_attrs.get(EXPERIMENT, now) != now:
            raise UserError(f"{self.out} has a search for {self.label} in another experiment; choose another --out")
        self.study.set_user_attr(EXPERIMENT, now)

    # What comes next

    def next(self) -> Trial | None:
        """The run that comes next: one that was stopped, a new trial, or a further seed; None when all are made."""
        with quietly():
            began = [one.number for one in self.study.trials if one.state.name == "RUNNING"]
            number = began[0] if began else self._asked()
        if number is not None:
            return self._trial(number, None)
        return next((self._trial(*pair) for pair in self._confirmations() if self._confirmed(*pair) is _MISSING), None)

    def _asked(self) -> int | None:
        """A new trial, if the budget allows for it."""
        known = [one for one in self.study.trials if one.state.name != "WAITING"]
        if self._unspent() < self.rounds or (known and not self.space):
            return None
        distributions = {key: self._distribution(key, dimension) for key, dimension in self.space.items()}
        if not known:  # the experiment as it is: what lies outside of the space is no part of the trial
            usual = {key: default_of(key, self.experiment) for key in distributions}
            usual = {key: value for key, value in usual.items() if self.space[key].contains(value)}
            distributions = {key: distributions[key] for key in usual}
            if not self.study.trials:
                self.study.enqueue_trial(usual)
        name = f"{self.label} {self.experiment.training.seed} {len(known)}"
        sampler = optuna_module().samplers.TPESampler(n_startup_trials=RANDOM, seed=zlib.crc32(name.encode()))
        self.study.sampler = sampler
        return self.study.ask(distributions).number

    def _unspent(self) -> int:
        """The rounds that the budget still has for trials."""
        return self.effort.trials * self.rounds - sum(one.rounds for one in self.tried())

    def rounds_left(self) -> int:
        """How many rounds are still to be run, at most; 0 when all is done."""
        began = any(one.state.name == "RUNNING" for one in self.study.trials)
        if began or (self._unspent() >= self.rounds and (self.space or not self.study.trials)):
            return self._unspent() + (1 + self.effort.finalists) * self.effort.confirmations * self.rounds
        return self.rounds * sum(self._confirmed(*pair) is _MISSING for pair in self._confirmations())

    def _distribution(self, key: str, dimension: Dimension) -> Any:
        found = optuna_module().distributions
        if isinstance(dimension, Choice):
            return found.CategoricalDistribution(dimension.values)
        if is_whole(key, self.experiment):
            return found.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
        return found.FloatDistribution(dimension.low, dimension.high, log=dimension.log)

    def _trial(self, number: int, seed: int | None) -> Trial:
        name = f"{self.slug}-{number:03d}" + ("" if seed is None else f"-seed{seed}")
        experiment = self._validated(self._values(number), FIRST_SEED if seed is None else seed)
        return Trial(self.label, number, experiment, self.out / "runs" / name, self.journal, self.merit, seed)

    def _values(self, number: int) -> Values:
        """What a trial has in place of the experiment's values."""
        if number == 0:
            return {}
        drawn = self.study.trials[number].params
        return {key: _rounded(value, self.space[key]) for key, value in drawn.items()}

    def _validated(self, values: Values, seed: int, *, personalised: bool | None = None) -> Experiment:
        """The experiment with these values on validation data, evaluated as often as is needed to judge it."""
        wanted = self.personalised if personalised is None else personalised
        training = {
            "seed": self.experiment.training.seed + seed,
            "rounds": self.rounds,
            "evaluate_every": max(1, self.rounds // EVALUATIONS),
            "evaluate_personalised_every": max(1, self.rounds // PERSONALISED_EVALUATIONS) if wanted else "never",
            "target": None,
            "target_accuracy": None,
        }
        searched = applied(self.experiment, values)
        return searched.with_values(federation={"evaluate_on": "validation"}, training=training)

    # What it came to

    def done(self, trial: Trial, outcome: Outcome) -> None:
        """Write down what a run came to, and delete its directory."""
        with quietly():
            if trial.seed is not None:
                self.study.set_user_attr(_name(trial.number, trial.seed), outcome.value)
            else:
                self.journal.trial(self.study, trial.number).set_user_attr(ROUNDS, outcome.rounds)
                if outcome.value is None or outcome.pruned:
                    self.study.tell(trial.number, state=optuna_module().trial.TrialState.PRUNED)
                else:
                    self.study.tell(trial.number, outcome.value)
        shutil.rmtree(trial.directory)

    def tried(self) -> list[Tried]:
        """The trials that ended, in order."""
        return [
            Tried(
                one.number,
                self._values(one.number),
                one.value if one.state.name == "COMPLETE" else None,
                one.user_attrs[ROUNDS],
                one.intermediate_values,
            )
            for one in self.study.trials
            if one.state.is_finished()
        ]

    def finalists(self) -> list[int]:
        """Trial 0, and the best others, each once."""
        tried = self.tried()
        complete = sorted((one for one in tried if one.value is not None), key=self._worth)
        values = {described(one.values): one.number for one in reversed(complete)}
        best = [one.number for one in complete if values[described(one.values)] == one.number]
        return list(dict.fromkeys([0, *best[: self.effort.finalists]]))

    def _worth(self, tried: Tried) -> tuple[float, int]:
        assert tried.value is not None
        return (-tried.value if self.higher_is_better else tried.value), tried.number

    def _confirmations(self) -> list[tuple[int, int]]:
        """The trials and seeds that decide; none where there is nothing to decide."""
        finalists = self.finalists()
        seeds = range(FIRST_SEED + 1, FIRST_SEED + 1 + self.effort.confirmations)
        return [(number, seed) for number in finalists for seed in seeds] if len(finalists) > 1 else []

    def _confirmed(self, number: int, seed: int) -> Any:
        return self.study.user_attrs.get(_name(number, seed), _MISSING)

    def found(self) -> Found:
        """The best of the finalists, the experiment as it is where none is better."""
        values = {number: self._decisive(number) for number in self.finalists()}
        sign = 1 if self.higher_is_better else -1
        best = max(values, key=lambda number: sign * fmean(values[number]) if values[number] else float("-inf"))
        chosen = self._values(best)
        return Found(applied(self.experiment, chosen), chosen, values[0], values[best])

    def _decisive(self, number: int) -> list[float]:
        """What a finalist reached with further seeds, or in its trial if there are none; nothing if it diverged."""
        if number >= len(self.study.trials):
            return []
        pairs = [pair for pair in self._confirmations() if pair[0] == number]
        found = [self._confirmed(*pair) for pair in pairs] or [self.study.trials[number].value]
        return [] if None in found or _MISSING in found else found


_MISSING = object()


def _name(number: int, seed: int) -> str:
    """Of a further seed's value in the journal."""
    return f"trial {number}, seed {seed}"


def _rounded(value: Any, dimension: Dimension) -> Any:
    """A value that was drawn, with few digits, within its range."""
    if isinstance(dimension, Choice) or not isinstance(value, float):
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), dimension.low), dimension.high)
