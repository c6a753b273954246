"""Learning-rate schedules: η_τ from the η of the experiment and the rounds since training started, or restarted."""

from collections.abc import Callable
from math import isfinite

from efl.errors import UserError
from efl.theory import learning_rate as theorem1

Schedule = Callable[[float, int], float]
KINDS = "constant, decay or theorem1:MU,GAMMA"


def decaying(learning_rate: float, decay: float, round_: int) -> float:
    """η / (1 + τ/decay); ``decay = 0`` keeps η constant.

    >>> decaying(0.1, 50, 0), decaying(0.1, 50, 50), decaying(0.1, 0, 50)
    (0.1, 0.05, 0.1)
    """
    return learning_rate / (1 + round_ / decay) if decay > 0 else learning_rate


def schedule(spec: str, decay: float, local_steps: int) -> Schedule:
    """A function of η and τ by its name: ``constant``, ``decay`` (with that of the experiment), ``theorem1:MU,GAMMA``.

    Theorem 1's rate follows from μ and γ alone and leaves the experiment's η aside; Σ_k p_τ^k s_τ^k is taken to be E on
    average, which is what unbiased weights make it.

    >>> schedule("theorem1:2,12", decay=50, local_steps=4)(0.1, 0)
    0.5
    """
    kind, _, argument = spec.partition(":")
    if kind == "constant" and not argument:
        return lambda eta, round_: eta
    if kind == "decay" and not argument:
        return lambda eta, round_: decaying(eta, decay, round_)
    if kind == "theorem1":
        convexity, gamma = _constants(spec, argument)
        return lambda eta, round_: theorem1(round_, local_steps, convexity, gamma, work=local_steps)
    raise UserError(f"training.schedule: unknown schedule {spec!r}; write {KINDS}")


def _constants(spec: str, argument: str) -> tuple[float, float]:
    try:
        convexity, gamma = (float(part) for part in argument.split(","))
    except ValueError:
        convexity, gamma = 0.0, 0.0
    if not (isfinite(convexity) and isfinite(gamma) and min(convexity, gamma) > 0):
        raise UserError(f"training.schedule: {spec!r} should be theorem1:MU,GAMMA with two numbers above 0")
    return convexity, gamma
