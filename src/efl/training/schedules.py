"""Learning-rate schedules: η_τ from the η of the experiment and the rounds since training started, or restarted."""

from collections.abc import Callable
from math import cos, pi

from efl.errors import UserError
from efl.settings import LARGEST, SMALLEST
from efl.theory import learning_rate as theorem1

Schedule = Callable[[float, int], float]
KINDS = "constant, decay, cosine or theorem1:MU,GAMMA"


def decaying(learning_rate: float, decay: float, round_: int) -> float:
    """η / (1 + τ/decay); ``decay = 0`` keeps η constant.

    >>> decaying(0.1, 50, 0), decaying(0.1, 50, 50), decaying(0.1, 0, 50)
    (0.1, 0.05, 0.1)
    """
    return learning_rate / (1 + round_ / decay) if decay > 0 else learning_rate


def cosine(learning_rate: float, rounds: int, round_: int) -> float:
    """Half a period of a cosine, from η in round 0 to 0 after the last (Loshchilov and Hutter 2017).

    >>> round(cosine(0.1, 100, 50), 6), cosine(0.1, 100, 0)
    (0.05, 0.1)
    """
    return learning_rate * 0.5 * (1 + cos(pi * min(round_, rounds) / rounds))


def schedule(spec: str, decay: float, local_steps: int, rounds: int = 1, warmup: int = 0) -> Schedule:
    """A function of η and τ by its name.

    Args:
        spec: ``constant``, ``decay``, ``cosine``, ``theorem1:MU,GAMMA``. Theorem 1's rate follows from μ and γ alone
            and leaves the experiment's η aside; Σ_k p_τ^k s_τ^k is taken to be E on average, which is what unbiased
            weights make it.
        decay: Of ``decay``.
        local_steps: E.
        rounds: Of the run, for ``cosine``.
        warmup: Rounds in which the schedule's rate is multiplied by 1/warmup, 2/warmup, …, 1.

    >>> schedule("theorem1:2,12", decay=50, local_steps=4)(0.1, 0)
    0.5
    >>> warm = schedule("constant", decay=0, local_steps=1, warmup=4)
    >>> [warm(0.1, round_) for round_ in (0, 1, 3, 9)]
    [0.025, 0.05, 0.1, 0.1]
    """
    whole = _whole(spec, decay, local_steps, rounds)
    if not warmup:
        return whole
    return lambda eta, round_: whole(eta, round_) * min(1.0, (round_ + 1) / warmup)


def _whole(spec: str, decay: float, local_steps: int, rounds: int) -> Schedule:
    kind, _, argument = spec.partition(":")
    if kind == "constant" and not argument:
        return lambda eta, round_: eta
    if kind == "decay" and not argument:
        return lambda eta, round_: decaying(eta, decay, round_)
    if kind == "cosine" and not argument:
        return lambda eta, round_: cosine(eta, rounds, round_)
    if kind == "theorem1":
        convexity, gamma = _constants(spec, argument)
        return lambda eta, round_: theorem1(round_, local_steps, convexity, gamma, work=local_steps)
    raise UserError(f"training.schedule: unknown schedule {spec!r}; write {KINDS}")


def _constants(spec: str, argument: str) -> tuple[float, float]:
    try:
        convexity, gamma = (float(part) for part in argument.split(","))
    except ValueError:
        convexity, gamma = 0.0, 0.0
    if not SMALLEST <= min(convexity, gamma) <= max(convexity, gamma) <= LARGEST:  # NaN is not, either
        raise UserError(f"training.schedule: {spec!r} should be theorem1:MU,GAMMA with two numbers above 0")
    return convexity, gamma
