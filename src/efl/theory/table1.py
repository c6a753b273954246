"""Table 1: communication rounds to accuracy ε, as each method's analysis gives them.

The formulas are orders of magnitude: constants and logarithms are left out, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType

from efl.errors import UserError
from efl.settings import NonNegative, Positive, Settings


@dataclass(frozen=True)
class Setting(Settings):
    """What the formulas need."""

    smoothness: Positive  # L
    convexity: Positive  # μ
    gradient: NonNegative  # G
    noise: NonNegative  # σ
    dissimilarity: NonNegative  # δ, by which Hessians differ
    clients: Positive  # N
    cohort: Positive  # S, clients a round

    @property
    def statistical(self) -> float:
        """G²/(μS), the rounds times ε that noise alone costs."""
        return self.gradient**2 / (self.convexity * self.cohort)


@dataclass(frozen=True)
class Method:
    """A row of the table; ``order`` gives rounds from a setting and ε."""

    bounded_gradient: bool
    convexity: str
    formula: str
    order: Callable[[Setting, float], float]


def _scaffold(at: Setting, epsilon: float) -> float:
    drift = at.gradient / (at.convexity * sqrt(epsilon))
    return at.statistical / epsilon + drift + at.smoothness / at.convexity


def _mime(at: Setting, epsilon: float) -> float:
    return at.statistical / epsilon + at.dissimilarity / at.convexity


def _vrl_sgd(at: Setting, epsilon: float) -> float:
    return at.clients * at.noise**2 / (at.cohort * epsilon**2) + at.clients / epsilon


def _fedamp(at: Setting, epsilon: float) -> float:
    statistical = at.gradient**2 / (at.smoothness * at.cohort * epsilon)
    return statistical + at.gradient / (epsilon * sqrt(epsilon)) + at.smoothness**2 / sqrt(epsilon)


def _efl(at: Setting, epsilon: float) -> float:
    return at.statistical / epsilon + at.smoothness / (at.convexity * sqrt(epsilon))


METHODS = MappingProxyType(
    {
        "SCAFFOLD": Method(True, "μ-strongly", "G²/(μSε) + G/(μ√ε) + L/μ", _scaffold),
        "MIME": Method(True, "μ-strongly", "G²/(μSε) + δ/μ", _mime),
        "VRL-SGD": Method(False, "none", "Nσ²/(Sε²) + N/ε", _vrl_sgd),
        "FedAMP": Method(True, "none", "G²/(LSε) + G/ε^1.5 + L²/√ε", _fedamp),
        "EFL": Method(True, "μ-strongly", "G²/(μSε) + L/(μ√ε)", _efl),
    }
)


def rounds_to(method: str, setting: Setting, epsilon: float) -> float:
    """The order of rounds ``method`` needs to come within ε.

    >>> setting = Setting(smoothness=4, convexity=1, gradient=2, noise=1, dissimilarity=3, clients=20, cohort=10)
    >>> rounds_to("EFL", setting, 0.01), rounds_to("MIME", setting, 0.01)
    (80.0, 43.0)
    """
    if method not in METHODS:
        raise UserError(f"unknown method {method!r}; choose one of: {', '.join(METHODS)}")
    if epsilon <= 0:
        raise UserError(f"epsilon: should be greater than 0, got {epsilon:g}")
    return METHODS[method].order(setting, epsilon)
