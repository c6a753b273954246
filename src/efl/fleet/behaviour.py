"""What becomes of a request: how many local steps a client manages, and whether its reply arrives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from efl.errors import UserError
from efl.fleet.selection import SELECTIONS, Selection
from efl.rng import Purpose, stream
from efl.validation import Probability, Settings

StepsDistribution = Callable[[np.random.Generator, int], int]


@dataclass(frozen=True, eq=False)
class RoundBehaviour:
    """For each client asked: steps it will do (0: inactive), and whether its reply will be lost on the way."""

    steps: NDArray[np.int64]
    lost: NDArray[np.bool_]


@dataclass(frozen=True)
class Fleet(Settings):
    """Clients that are slow, absent or unlucky.

    stragglers
        The share of clients that, in a round, do fewer than E steps.
    straggler_steps
        How many steps they do: ``uniform`` in 0 … E−1, ``constant:S``, ``beta:A,B`` (a share of E) or a function of
        a random generator and E.
    inactive
        The probability that a client does not answer at all in a round; one number, or one for each client.
    selection
        Who is asked: ``uniform``, or with probability proportional to its ``share`` of the samples.
    lost
        The probability that a reply is lost on its way.

    >>> Fleet(stragglers=0, inactive=0).behave(seed=0, round_=0, clients=np.arange(3), local_steps=5).steps
    array([5, 5, 5])
    """

    stragglers: Probability = 0.5
    straggler_steps: Any = "uniform"
    inactive: Probability | Annotated[tuple[Probability, ...], Field(min_length=1)] = 0.1
    selection: Literal["uniform", "share"] = "uniform"
    lost: Probability = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _distribution(self.straggler_steps)

    def check(self, clients: int) -> None:
        """Raise `UserError` if the fleet does not fit a federation of so many clients."""
        if isinstance(self.inactive, tuple) and len(self.inactive) != clients:
            raise UserError(f"fleet.inactive lists {len(self.inactive)} probabilities for {clients} clients")

    def select(self, shares: NDArray[np.float64], cohort: int, seed: int, round_: int) -> Selection:
        """The clients asked in this round."""
        return SELECTIONS[self.selection](shares, cohort, stream(seed, Purpose.SELECTION, round_))

    def behave(self, seed: int, round_: int, clients: NDArray[np.int64], local_steps: int) -> RoundBehaviour:
        """What each of these clients does in this round; it depends on nobody but the client itself."""
        draw = _distribution(self.straggler_steps)
        steps = np.full(len(clients), local_steps, dtype=np.int64)
        lost = np.zeros(len(clients), dtype=bool)
        for i, client in enumerate(clients):
            rng = stream(seed, Purpose.BEHAVIOUR, round_, int(client))
            inactive, straggling, gone = rng.random(3)
            if inactive < self._inactivity(int(client)):
                steps[i] = 0
            elif straggling < self.stragglers:
                steps[i] = min(max(draw(rng, local_steps), 0), local_steps)
            lost[i] = gone < self.lost
        return RoundBehaviour(steps, lost)

    def _inactivity(self, client: int) -> float:
        return self.inactive[client] if isinstance(self.inactive, tuple) else self.inactive


def _distribution(spec: str | StepsDistribution) -> StepsDistribution:
    if callable(spec):
        return spec
    kind, _, argument = str(spec).partition(":")
    try:
        numbers = [float(part) for part in argument.split(",")] if argument else []
        if not all(np.isfinite(numbers)):
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
