"""What becomes of a request: how many local steps a client manages, and whether its reply arrives."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from efl.errors import UserError
from efl.settings import LARGEST

StepsDistribution = Callable[[np.random.Generator, int], int]


@dataclass(frozen=True, eq=False)
class RoundBehaviour:
    """For each client asked: steps it will do (0: inactive), and whether its reply will be lost on the way."""

    steps: NDArray[np.int64]
    lost: NDArray[np.bool_]


def steps_distribution(spec: str | StepsDistribution) -> StepsDistribution:
    """How many steps a straggler does, from its name."""
    if callable(spec):
        return spec
    kind, _, argument = str(spec).partition(":")
    try:
        numbers = [float(part) for part in argument.split(",")] if argument else []
        if not all(abs(number) <= LARGEST for number in numbers):
            raise ValueError
        if kind == "uniform" and not numbers:
            return lambda rng, local_steps: int(rng.integers(local_steps))
        if kind == "constant" and len(numbers) == 1 and numbers[0] >= 0:
            return lambda rng, local_steps: int(numbers[0])
        if kind == "beta" and len(numbers) == 2 and min(numbers) > 0:
            return lambda rng, local_steps: int(rng.beta(numbers[0], numbers[1]) * local_steps)
    except ValueError:
        pass
    raise UserError(f"straggler_steps: unknown distribution {spec!r}; write uniform, constant:S or beta:A,B")
