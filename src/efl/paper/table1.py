"""Table 1 by experiment: every method's formula for the rounds to ε, and the rounds EFL's recursion really needs.

The formulas are orders of magnitude. So what is checked of EFL's is its shape: over ε and over the clients per round,
the measured rounds must follow it up to one constant factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efl.paper.checks import Cell, Check, Outcome, panel
from efl.theory.constants import Array
from efl.theory.participation import Participation
from efl.theory.problems import Quadratic
from efl.theory.simulate import simulate
from efl.theory.table1 import METHODS, Setting, rounds_to
from efl.theory.theorem1 import Theorem1
from efl.track.canvas import new_figure, save
from efl.track.figures import COLOURS

CLIENTS, DIMENSION, LOCAL_STEPS = 16, 6, 2
START, RADIUS = 1.0, 3.0
COHORTS = (4, 8, 16)
TOLERANCE = 0.15  # of exponents


@dataclass(frozen=True)
class Scale:
    """How large the study is."""

    seeds: int
    rounds: int


SCALES = {"smoke": Scale(20, 1000), "small": Scale(40, 2000), "full": Scale(100, 4000)}


@dataclass(frozen=True, eq=False)
class Curve:
    """Rounds to each accuracy with S clients per round, measured and by EFL's formula."""

    cohort: int
    accuracies: Array  # ε of F(w) − F*
    measured: Array
    formula: Array
    offset: float  # γ/E: the rounds that the learning rate counts as done before round 0

    @property
    def total(self) -> Array:
        """Measured rounds in the theorem's time, τ + γ/E; this is what falls like 1/ε."""
        return np.asarray(self.measured + self.offset)

    @property
    def exponent(self) -> float:
        """How the measured rounds grow with 1/ε, less how the formula does."""
        over = -np.log(self.accuracies)
        return float(np.polyfit(over, np.log(self.total / self.formula), 1)[0])


def run(scale: Scale, out: Path) -> Outcome:
    """Measure, judge, draw."""
    problem = Quadratic.random(
        2, clients=CLIENTS, dimension=DIMENSION, smoothness=1.2, spread=0.3, noise=3.0, samples=[100] * CLIENTS
    )
    curves = measure(problem, scale)
    outcome = Outcome(judge(curves), *_table(problem, curves))
    outcome.write(out)
    _draw(problem, curves, out / "rounds.png")
    return outcome


def measure(problem: Quadratic, scale: Scale) -> list[Curve]:
    """Every client is asked with probability S/N and weighs p^k·N/S; ε runs over what all cohorts reach for good."""
    start, constants = problem.optimum + START / np.sqrt(DIMENSION), problem.constants(RADIUS)
    excess, offsets = [], []
    for cohort in COHORTS:
        away = np.full(CLIENTS, 1 - cohort / CLIENTS)
        law = Participation.inactive(problem.shares, LOCAL_STEPS, away, corrected=True)
        theorem = Theorem1(constants, [law], START**2)
        path = simulate(problem, theorem, rounds=scale.rounds, seeds=scale.seeds, start=start)
        excess.append(problem.excess(path.models).mean(1))
        offsets.append(theorem.gamma / LOCAL_STEPS)
    least = max(float(values[-scale.rounds // 5 :].max()) for values in excess)
    accuracies = least * np.geomspace(4, 1, 9)
    return [
        Curve(cohort, accuracies, _needed(values, accuracies), _formula(problem, cohort, accuracies), offset)
        for cohort, values, offset in zip(COHORTS, excess, offsets, strict=True)
    ]


def judge(curves: Sequence[Curve]) -> list[Check]:
    """The formula's shape, in ε and in S, and that it is not exceeded."""
    ratios = np.array([curve.measured / curve.formula for curve in curves])
    below = int((ratios <= 1).sum())
    checks = [
        Check(
            "EFL: rounds within the formula",
            below == ratios.size,
            f"{below} of {ratios.size}, at most {ratios.max():.2f} of it",
        )
    ]
    for curve in curves:
        grows, name = (
            abs(curve.exponent) <= TOLERANCE,
            f"EFL, S = {curve.cohort}: rounds grow with 1/ε like the formula",
        )
        checks.append(Check(name, grows, f"exponent off by {curve.exponent:+.3f}, allowed ± {TOLERANCE}"))
    cohorts = np.log([curve.cohort for curve in curves])
    ratios_of_totals = np.log([curve.total / curve.formula for curve in curves])
    exponent = float(np.polyfit(cohorts, ratios_of_totals, 1)[0].mean())
    name, figures = (
        "EFL: rounds fall with S like the formula",
        f"exponent off by {exponent:+.3f}, allowed ± {TOLERANCE}",
    )
    return [*checks, Check(name, abs(exponent) <= TOLERANCE, figures)]


def setting(problem: Quadratic, cohort: int) -> Setting:
    """What the formulas need to know of the problem."""
    return Setting(
        smoothness=problem.smoothness,
        convexity=problem.convexity,
        gradient=problem.gradient_bound(RADIUS),
        noise=float(problem.noise.max()),
        dissimilarity=problem.dissimilarity,
        clients=CLIENTS,
        cohort=cohort,
    )


def _needed(excess: Array, accuracies: Array) -> Array:
    """The first round from which F(w) − F* stays within each accuracy."""
    return np.array([float(np.flatnonzero(excess > epsilon)[-1] + 1) for epsilon in accuracies])


def _formula(problem: Quadratic, cohort: int, accuracies: Array) -> Array:
    return np.array([rounds_to("EFL", setting(problem, cohort), epsilon) for epsilon in accuracies])


def _table(problem: Quadratic, curves: Sequence[Curve]) -> tuple[list[str], list[list[Cell]]]:
    """The paper's table with numbers in: rounds to three accuracies with the smallest cohort."""
    curve = curves[0]
    chosen = [0, len(curve.accuracies) // 2, len(curve.accuracies) - 1]
    titles = [f"ε = {curve.accuracies[i]:.2g}" for i in chosen]
    header = ["method", "bounded gradient", "convexity", "rounds", *titles]
    at = setting(problem, curve.cohort)
    rows: list[list[Cell]] = [
        [
            name,
            "yes" if method.bounded_gradient else "no",
            method.convexity,
            method.formula,
            *(method.order(at, float(curve.accuracies[i])) for i in chosen),
        ]
        for name, method in METHODS.items()
    ]
    return header, [*rows, ["EFL, measured", "", "", "", *(float(curve.measured[i]) for i in chosen)]]


def _draw(problem: Quadratic, curves: Sequence[Curve], path: Path) -> None:
    """All formulas, and EFL's against what was measured."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2)
    accuracies, at = np.geomspace(1e-4, 1, 60), setting(problem, curves[0].cohort)
    lines = zip(METHODS, COLOURS, ("-", ":", "-", "-", "-"), (1.4, 2, 1.4, 1.4, 5), strict=False)
    for name, colour, line, width in lines:  # three of them nearly coincide: EFL is drawn broad, below the others
        rounds = [rounds_to(name, at, epsilon) for epsilon in accuracies]
        left.plot(accuracies, rounds, line, color=colour, lw=width, zorder=1 if width == 5 else 2, label=name)
    panel(left, f"Table 1’s formulas, S = {at.cohort:g} of {CLIENTS} clients", "accuracy ε", "rounds")
    for curve, colour in zip(curves, COLOURS, strict=False):
        right.plot(curve.accuracies, curve.formula, "--", color=colour, lw=1.2)
        right.plot(curve.accuracies, curve.measured, "o-", color=colour, ms=4, label=f"S = {curve.cohort}")
    right.plot([], [], "--", color="black", lw=1.2, label="formula")
    panel(right, "EFL: measured", "accuracy ε of F(w) − F*", "rounds")
    for axis in (left, right):
        axis.invert_xaxis()
        axis.legend(frameon=False)
    save(figure, path)
