"""What privacy costs, round by round, and how much noise it needs.

Every round is a Gaussian mechanism on clients sampled by themselves with probability q (`efl.algorithms.transforms`
says what is released). How these add up is worked out with privacy loss distributions by Google's ``dp-accounting``:
tight, and never less than the true ε. Neighbours differ by one client, which is there or is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import floor, inf, log10
from typing import Any, TypeVar

from efl.algorithms.base import Algorithm
from efl.algorithms.fitting import fit, privacy_of, with_privacy
from efl.algorithms.transforms.privacy import Privacy
from efl.config import Experiment
from efl.config_sections import TrainingSection
from efl.errors import UserError
from efl.fleet import Fleet
from efl.runs.records import BUDGET

A = TypeVar("A", bound=Algorithm)

INTERVAL, FINE_INTERVAL, MUCH_NOISE = 1e-3, 1e-4, 2.0  # of privacy losses; with much noise they are small
LEAST_NOISE, MOST_NOISE = 0.05, 1e5
DIGITS = 4  # of a noise multiplier


@dataclass(frozen=True)
class Accountant:
    """The ε that rounds have cost.

    Attributes:
        rate: q, the probability with which each client is sampled in a round.
        noise: z, the noise multiplier.
        delta: δ.
        budget: The ε that a run must not exceed; None for no limit.
    """

    rate: float
    noise: float
    delta: float
    budget: float | None = None

    def after(self, rounds: int) -> float:
        """ε after so many rounds."""
        return epsilon(self.rate, self.noise, self.delta, rounds)

    def allowed(self, rounds: int) -> int:
        """How many of ``rounds`` stay within the budget."""
        if self.budget is None or self.after(rounds) <= self.budget:
            return rounds
        fits, exceeds = 0, rounds
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            fits, exceeds = (middle, exceeds) if self.after(middle) <= self.budget else (fits, middle)
        return fits


@lru_cache(maxsize=4096)
def epsilon(rate: float, noise: float, delta: float, rounds: int) -> float:
    """ε at δ of so many rounds with this noise multiplier, each client sampled with probability ``rate``."""
    if rounds == 0:
        return 0.0
    found: float = _losses(rate, noise).self_compose(rounds).get_epsilon_for_delta(delta)
    return found


def needed_noise(rate: float, budget: float, delta: float, rounds: int) -> float:
    """The least noise multiplier, rounded up to a few digits, with which so many rounds stay within the budget."""
    low, high = 0.5, 1.0
    while epsilon(rate, high, delta, rounds) > budget:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise UserError(f"privacy: no noise keeps {rounds} rounds within epsilon = {budget:.3g}; allow more")
    while low > LEAST_NOISE and epsilon(rate, low, delta, rounds) <= budget:
        low, high = low / 2, low
    while high / low > 1 + 10**-DIGITS:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if epsilon(rate, middle, delta, rounds) > budget else (low, middle)
    unit = 10.0 ** (floor(log10(high)) - DIGITS + 1)
    return round((floor(high / unit) + 1) * unit, DIGITS + 5)


@lru_cache(maxsize=2)
def _losses(rate: float, noise: float) -> Any:
    """The distribution of one round's privacy loss."""
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError:
        raise UserError("privacy needs dp-accounting: pip install 'elastic-fl[privacy]'") from None
    interval = FINE_INTERVAL if noise >= MUCH_NOISE else INTERVAL
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=interval, sampling_prob=rate
    )


def fitted(algorithm: A, clients: int, training: TrainingSection, fleet: Fleet) -> A:
    """The algorithm ready for a run: settings left to it decided; with privacy, its noise found.

    Raises:
        UserError: Privacy does not hold with these settings, or one round would exceed its budget.
    """
    algorithm = fit(algorithm, clients, training.replies)
    privacy = privacy_of(algorithm)
    if privacy is None:
        return algorithm
    _check(privacy, clients, fleet)
    noise, rate = privacy.noise_multiplier, training.cohort / clients
    if noise is None:
        noise = needed_noise(rate, privacy.epsilon or inf, privacy.delta, training.rounds)
    accountant = Accountant(rate, noise, privacy.delta, privacy.epsilon)
    if not accountant.allowed(1):
        raise UserError(
            f"privacy: the first round would cost epsilon = {accountant.after(1):.3g} with noise_multiplier = "
            f"{noise:g}, more than the budget of {privacy.epsilon:g}; raise one of them"
        )
    replace(privacy, noise_multiplier=noise).update_noise(training.cohort)
    return with_privacy(algorithm, noise_multiplier=noise)


def _check(privacy: Privacy, clients: int, fleet: Fleet) -> None:
    if fleet.selection != "poisson":
        raise UserError(
            f"privacy: fleet.selection = '{fleet.selection}' is not what it is accounted for by; set it to 'poisson'"
        )
    if fleet.abandon is not False:
        raise UserError("privacy: fleet.abandon follows who replies; set it to false")
    if privacy.delta >= 1 / clients:
        raise UserError(
            f"privacy: delta = {privacy.delta:g} is much for {clients} clients; set it below {1 / clients:g}"
        )


def accountant_of(experiment: Experiment, algorithm: Algorithm) -> Accountant | None:
    """What accounts for the rounds of an experiment; None without privacy."""
    privacy = privacy_of(algorithm)
    if privacy is None or privacy.noise_multiplier is None:
        return None
    rate = experiment.training.cohort / experiment.federation.clients
    return Accountant(rate, privacy.noise_multiplier, privacy.delta, privacy.epsilon)


def described(experiment: Experiment, algorithm: Algorithm) -> str | None:
    """What privacy a run has, and what of its algorithm is off for it, in a line."""
    account = accountant_of(experiment, algorithm)
    if account is None:
        return None
    budget = "no budget" if account.budget is None else f"ε at most {account.budget:g}"
    noise = f"noise multiplier {account.noise:g}, each client sampled with probability {account.rate:g}"
    settings = ", ".join(f"{name} = {getattr(algorithm, name)}" for name in algorithm.private_settings)
    return f"private: {budget} at δ = {account.delta:g}, {noise}" + (f"; with {settings}" if settings else "")


@dataclass(frozen=True)
class Spending:
    """How much privacy a run has spent, and may spend; nothing without privacy."""

    accountant: Accountant | None
    rounds: int

    @cached_property
    def last_round(self) -> int:
        """How many rounds there can be: those that are wanted, as far as the budget allows them."""
        return self.rounds if self.accountant is None else self.accountant.allowed(self.rounds)

    def figures(self, rounds: int) -> dict[str, float]:
        """What a record says after so many rounds."""
        return {} if self.accountant is None else {"epsilon": round(self.accountant.after(rounds), 6)}

    def ended(self, rounds: int) -> str | None:
        """What ended a run after so many rounds, if it was the budget."""
        return BUDGET if self.last_round <= rounds < self.rounds else None

    def summary(self, rounds: int) -> dict[str, Any]:
        """What a summary says."""
        if self.accountant is None:
            return {}
        account = self.accountant
        known = {"delta": account.delta, "noise_multiplier": account.noise, "epsilon_budget": account.budget}
        return {**self.figures(rounds), **known}
