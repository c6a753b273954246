"""The fleet: everything that is irregular about clients, as the [fleet] section of an experiment says it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from efl.errors import UserError
from efl.fleet.assumptions import Assumptions
from efl.fleet.attacks import ATTACKS, Attack, hostile_clients
from efl.fleet.behaviour import RoundBehaviour, steps_distribution
from efl.fleet.calendar import Calendar, Event
from efl.fleet.clock import Clock
from efl.fleet.traces import EXAMPLES, find_trace, read_trace
from efl.rng import Purpose, stream
from efl.settings import MOST, NonNegative, Positive, Probability, Settings

PerClient = Probability | Annotated[tuple[Probability, ...], Field(min_length=1)]
Since = Annotated[int, Field(ge=0, le=MOST)]
Inactivity = PerClient | Annotated[tuple[tuple[Since, PerClient], ...], Field(min_length=1)]

# Of a choice between types, the first complaint says little; these say what can be written.
EVENTS = "write [[round, who], …] or [[first, last, who], …], rounds from 1 on, who a number or a list of clients"
HINTS = {
    "arrivals": f"arrivals: {EVENTS}",
    "departures": f"departures: {EVENTS}",
    "abandon": "abandon: write false, the inactivity above which clients go, such as 0.5, or a table of Corollary 1's "
    "constants: smoothness, convexity, gradient, noise, divergence",
}


@dataclass(frozen=True)
class Fleet(Settings):
    """Which clients are slow, absent or unlucky, and which come and go; by default none is.

    Args:
        stragglers: The share of sampled clients that do fewer than E steps in a round.
        straggler_steps: How many steps they do: ``uniform`` in 0 … E−1, ``constant:S``, ``beta:A,B`` (a share of E) or
            a function of a random generator and E.
        inactive: y^k, the probability that a sampled client does not reply in a round: one number, or one per client;
            or ``[[round, y], …]``, each from its round on; or a function of client and round.
        selection: How cohorts are sampled: ``uniform``, with probability proportional to a client's ``share`` of the
            samples, uniformly among those that are ``available`` by the trace, or each client by itself (``poisson``),
            so that ``cohort`` is the mean.
        lost: The probability that a reply is lost on its way.
        arrivals: Who comes when: ``[[round, who], …]``, or ``[[first, last, who], …]`` for each at a random round in
            between. ``who`` is a number of clients (those with the highest numbers) or a list of them.
        departures: The same for those who go; a number means random ones.
        on_departure: ``keep`` who departs in the objective, or ``drop`` it: shares are renormalised, the learning rate
            starts over.
        abandon: Clients that are too often inactive leave the objective: above this inactivity, or when Corollary 1
            says so, given its constants. They are sampled now and then, and taken back once they reply steadily.
        trace: A file (or an example's name) that says when clients are available and how fast they are. Rounds then
            take simulated time.
        deadline: The seconds of that time a round may last.
        attack: What hostile clients do, such as ``sign_flip`` (docs/security.md lists them); ``absent`` has them stay
            away, which is perfect exclusion.
        hostile: The share of clients that are hostile, drawn at random.
        attack_strength: How far the attack goes, if not as usual.
        attack_from: The round from which on they are hostile, if not as usual.

    Raises:
        UserError: If a setting is out of range, or does not fit another.

    >>> Fleet().behave(seed=0, round_=0, clients=np.arange(3), local_steps=5).steps
    array([5, 5, 5])
    """

    stragglers: Probability = 0.0
    straggler_steps: Any = "uniform"
    inactive: Inactivity | Callable[[int, int], float] = 0.0
    selection: Literal["uniform", "share", "available", "poisson"] = "uniform"
    lost: Probability = 0.0
    arrivals: tuple[Event, ...] = ()
    departures: tuple[Event, ...] = ()
    on_departure: Literal["keep", "drop"] = "keep"
    abandon: Literal[False] | Probability | Assumptions = False
    trace: str | None = None
    deadline: Positive | None = None
    attack: str | None = None
    hostile: Probability = 0.0
    attack_strength: NonNegative | None = None
    attack_from: Annotated[int, Field(ge=0)] | None = None

    def __post_init__(self) -> None:
        if self.abandon is True:
            raise UserError(HINTS["abandon"])
        try:
            super().__post_init__()
        except UserError as error:
            raise UserError(HINTS.get(str(error).partition(":")[0], str(error))) from None
        steps_distribution(self.straggler_steps)
        if self.trace is None and (self.selection == "available" or self.deadline is not None):
            key = "deadline" if self.deadline is not None else "selection"
            raise UserError(f"{key}: needs a trace, which says who is available and how fast")
        if self.trace is not None:
            path = find_trace(self.trace)
            if path.parent != EXAMPLES:  # a run goes on from whatever folder it is resumed in
                object.__setattr__(self, "trace", str(path))
        if self.attack is not None and self.attack not in ATTACKS:
            raise UserError(f"attack: unknown attack {self.attack!r}; choose one of: {', '.join(ATTACKS)}")
        if (self.attack is None) != (self.hostile == 0):
            raise UserError("attack: says what hostile clients do, and hostile how many there are; write both")
        rounds = [since for since, _ in self._inactivity_by_round()]
        if rounds != sorted(set(rounds)) or rounds[:1] not in ([], [0]):
            raise UserError("inactive: [[round, y], …] should begin at round 0 and go on in order")

    def check(self, clients: int, seed: int = 0) -> None:
        """Raise `UserError` if the fleet does not fit a federation of so many clients."""
        for _, value in self._inactivity_by_round():
            if isinstance(value, tuple) and len(value) != clients:
                raise UserError(f"fleet.inactive lists {len(value)} probabilities for {clients} clients")
        try:
            Calendar.of(self.arrivals, self.departures, clients, seed)
            if isinstance(self.abandon, Assumptions):
                self.abandon.constants(np.full(clients, 1 / clients))
        except UserError as error:
            raise UserError(f"fleet.{error}") from None
        if self.trace is not None:
            read_trace(find_trace(self.trace), clients)

    def hostility(self, clients: int, seed: int) -> tuple[Attack, NDArray[np.int64]] | None:
        """What hostile clients do, and who they are; None if there are none."""
        if self.attack is None:
            return None
        attack = ATTACKS[self.attack]
        if self.attack_strength is not None:
            attack = replace(attack, strength=self.attack_strength)
        if self.attack_from is not None:
            attack = replace(attack, start=self.attack_from)
        return attack, hostile_clients(self.hostile, clients, seed)

    def clock(self, clients: int, first_upload: int) -> Clock | None:
        """Simulated time, where there is a trace; ``first_upload`` is the reply's length before any is known."""
        if self.trace is None:
            return None
        return Clock(read_trace(find_trace(self.trace), clients), first_upload)

    def behave(self, seed: int, round_: int, clients: NDArray[np.int64], local_steps: int) -> RoundBehaviour:
        """What each of these clients does in this round; it depends on nobody but the client itself."""
        draw = steps_distribution(self.straggler_steps)
        inactivity = self._inactivity(round_)
        steps = np.full(len(clients), local_steps, dtype=np.int64)
        lost = np.zeros(len(clients), dtype=bool)
        for i, client in enumerate(clients.tolist()):
            silence = inactivity(client)
            if not (silence or self.stragglers or self.lost):
                continue  # nothing is left to chance, as where a trace says it all
            rng = stream(seed, Purpose.BEHAVIOUR, round_, client)
            inactive, straggling, gone = rng.random(3)
            if inactive < silence:
                steps[i] = 0
            elif straggling < self.stragglers:
                steps[i] = min(max(draw(rng, local_steps), 0), local_steps)
            lost[i] = gone < self.lost
        return RoundBehaviour(steps, lost)

    def _inactivity(self, round_: int) -> Callable[[int], float]:
        """y^k in this round, by client."""
        if callable(law := self.inactive):
            return lambda client: law(client, round_)
        value = [value for since, value in self._inactivity_by_round() if since <= round_][-1]
        return (lambda client: value[client]) if isinstance(value, tuple) else (lambda client: value)

    def _inactivity_by_round(self) -> list[tuple[int, float | tuple[float, ...]]]:
        """Since which round which probabilities hold; nothing for a function."""
        if callable(self.inactive):
            return []
        if isinstance(self.inactive, tuple) and isinstance(self.inactive[0], tuple):
            return list(self.inactive)
        return [(0, self.inactive)]
