"""Theorem 1 by experiment: six ways of taking part, the measured E‖w_τ − w*‖² against the bound.

Unbiased ways must fall like 1/(τE + γ), which on a log-log plot over τ is a slope of −1 once τE ≫ γ. Biased ones must
stall where the theory says: at the distance from w* to the minimiser of Σ_k E[p_τ^k s_τ^k]·F_k, below the J/E that the
bound's second term tends to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efl.paper.checks import Cell, Check, Outcome
from efl.paper.convergence import Curve, draw, judge
from efl.theory.constants import Array
from efl.theory.logistic import Logistic
from efl.theory.participation import Participation
from efl.theory.problems import Problem, Quadratic
from efl.theory.simulate import Trajectory, simulate
from efl.theory.theorem1 import Theorem1
from efl.theory.theorem2 import departure_bound

CLIENTS, DIMENSION = 10, 6
START, RADIUS = 1.0, 3.0  # ‖w_0 − w*‖, and how far from w* models may go for G to hold
MOST_INACTIVE = 0.6


@dataclass(frozen=True)
class Scale:
    """How large the study is."""

    seeds: int
    rounds: int
    local_steps: int
    problems: tuple[str, ...] = ("quadratic", "logistic")


SCALES = {
    "smoke": Scale(20, 500, 2, ("quadratic",)),
    "small": Scale(40, 2000, 4),
    "full": Scale(100, 4000, 5),
}


def run(scale: Scale, out: Path) -> Outcome:
    """Measure, judge, draw."""
    checks: list[Check] = []
    rows: list[list[Cell]] = []
    for name in scale.problems:
        curves = measure(problem_named(name), scale)
        for curve in curves:
            checks += judge(f"{name}, {curve.name}", curve)
            rows.append(_row(name, curve))
        checks += _across(name, curves)
        title = f"Theorem 1, {name} clients: {scale.seeds} seeds, E = {scale.local_steps}"
        draw(title, curves, out / f"{name}.png")
    header = ("problem", "participation", "error at T", "bound at T", "slope over τE+γ", "slope over τ", "stall", "J/E")
    outcome = Outcome(checks, header, rows)
    outcome.write(out)
    return outcome


def problem_named(name: str) -> Problem:
    """The two federations of the study."""
    if name == "quadratic":
        return Quadratic.random(1, clients=CLIENTS, dimension=DIMENSION, smoothness=1.5, spread=2.0, noise=1.5)
    sizes = [40 + 20 * (client % 3) for client in range(CLIENTS)]
    return Logistic.random(1, samples=sizes, dimension=DIMENSION, ridge=0.4, spread=2.0, batch_size=8)


def measure(problem: Problem, scale: Scale) -> list[Curve]:
    """All ways of taking part."""
    shares, E, inactivity = problem.shares, scale.local_steps, _unequal(problem)
    steady = {
        "complete": Participation.complete(shares, E),
        "incomplete, weights p·E/s": Participation.incomplete(shares, E),
        "unequal inactivity": Participation.inactive(shares, E, inactivity),
        "unequal inactivity, corrected": Participation.inactive(shares, E, inactivity, corrected=True),
    }
    curves = [_steady(name, problem, law, scale) for name, law in steady.items()]
    return [*curves, _kept(problem, scale), _dropped(problem, scale)]


def _steady(name: str, problem: Problem, law: Participation, scale: Scale) -> Curve:
    """The same law in every round."""
    theorem = Theorem1(problem.constants(RADIUS), [law], START**2)
    path = simulate(problem, theorem, rounds=scale.rounds, seeds=scale.seeds, start=_start(problem))
    if law.is_unbiased:
        return _curve(name, problem, theorem, path, falling=range(scale.rounds))
    return _curve(name, problem, theorem, path, stall=_shift(problem, law.work))


def _kept(problem: Problem, scale: Scale) -> Curve:
    """A client goes after a quarter of the rounds and stays in the objective: from then on r_τ = 1."""
    leaves = scale.rounds // 4
    before = Participation.complete(problem.shares, scale.local_steps)
    gone = np.arange(CLIENTS) == _weightiest(problem)
    after = Participation.inactive(problem.shares, scale.local_steps, gone)
    theorem = Theorem1(problem.constants(RADIUS), [before] * leaves + [after], START**2)
    path = simulate(problem, theorem, rounds=scale.rounds, seeds=scale.seeds, start=_start(problem))
    return _curve("departure, kept in F", problem, theorem, path, stall=_shift(problem, after.work))


def _dropped(problem: Problem, scale: Scale) -> Curve:
    """The same departure, but the objective is that of the others from then on and the learning rate restarts.

    Errors before and after are those to the optimum of the time. The restart's distance is bounded by what Theorem 1
    says of the old optimum and Theorem 2 of the shift.
    """
    leaves, client = scale.rounds // 4, _weightiest(problem)
    constants, rest = problem.constants(RADIUS), problem.without(client)
    old = Theorem1(constants, [Participation.complete(problem.shares, scale.local_steps)], START**2)
    first = simulate(problem, old, rounds=leaves, seeds=scale.seeds, start=_start(problem))
    shift = departure_bound(
        smoothness=constants.smoothness,
        convexity=constants.convexity,
        samples_of_client=float(problem.samples[client]),
        samples_before=float(problem.samples.sum()),
        new_divergence=float(problem.divergence(rest.optimum)[client]),
    )
    distance = float((np.sqrt(old.bound(leaves)) + np.sqrt(shift)) ** 2)
    new = Theorem1(rest.constants(RADIUS), [Participation.complete(rest.shares, scale.local_steps)], distance)
    rounds = scale.rounds - leaves
    second = simulate(rest, new, rounds=rounds, seeds=scale.seeds, start=first.models[-1], first_round=leaves)
    return Curve(
        name="departure, dropped, restart",
        errors=np.concatenate([first.errors(problem.optimum)[:-1], second.errors(rest.optimum)]),
        bound=np.concatenate([old.bounds(leaves)[:-1], new.bounds(rounds)]),
        falling=range(leaves, scale.rounds),
        stall=None,
        offset=new.gamma / scale.local_steps,
        ceiling=new.J / scale.local_steps,
        farthest=max(first.farthest, second.farthest),
    )


def _curve(
    name: str,
    problem: Problem,
    theorem: Theorem1,
    path: Trajectory,
    *,
    falling: range = range(0),
    stall: float | None = None,
) -> Curve:
    errors, E = path.errors(problem.optimum), theorem.local_steps
    bound = theorem.bounds(len(errors) - 1)
    return Curve(name, errors, bound, falling, stall, theorem.gamma / E, theorem.J / E, path.farthest)


def _across(problem: str, curves: list[Curve]) -> list[Check]:
    """What must hold of all curves together."""
    ends = {curve.name: curve.end for curve in curves}
    stalled, freed = ends["unequal inactivity"], ends["unequal inactivity, corrected"]
    farthest = max(curve.farthest for curve in curves)
    return [
        Check(f"{problem}: the correction removes the stall", freed < stalled / 4, f"{stalled:.3g} → {freed:.3g}"),
        Check(f"{problem}: models stay where G holds", farthest <= RADIUS, f"{farthest:.2f} of {RADIUS:g} away"),
    ]


def _start(problem: Problem) -> Array:
    return np.asarray(problem.optimum + START / np.sqrt(DIMENSION))


def _unequal(problem: Problem) -> Array:
    """Inactivity that rises along the direction in which the clients' own optima differ most, so that it matters."""
    own = np.array([problem.minimiser(row) for row in np.eye(CLIENTS)])
    _, _, directions = np.linalg.svd(own - own.mean(0))
    rank = (own @ directions[0]).argsort().argsort()
    return np.asarray(np.linspace(0, MOST_INACTIVE, CLIENTS)[rank])


def _weightiest(problem: Problem) -> int:
    """The client whose departure moves the optimum most."""
    clients = np.arange(CLIENTS)
    return int(np.argmax([_shift(problem, problem.shares * (clients != client)) for client in clients]))


def _shift(problem: Problem, work: Array) -> float:
    """The squared distance from w* to where these weights lead."""
    return float(((problem.minimiser(work) - problem.optimum) ** 2).sum())


def _row(problem: str, curve: Curve) -> list[Cell]:
    slopes: list[Cell] = [curve.slope, curve.plain_slope] if curve.falling else ["–", "–"]
    stall = "–" if curve.stall is None else curve.stall
    return [problem, curve.name, curve.end, float(curve.bound[-1]), *slopes, stall, curve.ceiling]
