"""Theorem 2 by experiment: random federations lose or gain a client; the optimum's shift against the bound.

The paper's bound for an arrival takes D̂_a at the new optimum, which fails for a newcomer with most of the samples
(`efl.theory.theorem2`). So arrivals are held against that form where n_a ≤ n, and against the mended one everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from efl.paper.checks import Cell, Check, Outcome, panel
from efl.rng import Purpose, stream
from efl.theory.constants import Array
from efl.theory.logistic import Logistic
from efl.theory.problems import Problem, Quadratic
from efl.theory.theorem2 import arrival_bound, departure_bound
from efl.track.canvas import new_figure, save
from efl.track.figures import COLOURS

DIMENSION = 5
HEAVY = 10  # times the samples of all others, for newcomers that break the printed form
STEPS = np.geomspace(1, 0.05, 8)  # by which samples, and the distances between clients, shrink


@dataclass(frozen=True)
class Scale:
    """How many federations, half of them quadratic and half logistic."""

    federations: int


SCALES = {"smoke": Scale(20), "small": Scale(100), "full": Scale(200)}


@dataclass(frozen=True)
class Shift:
    """One client's going or coming: the squared shift of the optimum, and what the theorem allows."""

    samples: float  # n_a
    others: float  # samples of all others
    squared: float
    leaving: float  # bound for a departure
    joining: float  # bound for an arrival, D_a at the old optimum
    joining_as_printed: float  # D̂_a at the new one


def run(scale: Scale, out: Path) -> Outcome:
    """Measure, judge, draw."""
    usual = [measure(*random_federation(seed)) for seed in range(scale.federations)]
    heavy = [measure(*random_federation(seed, heaviest=HEAVY)) for seed in range(scale.federations)]
    trends = [trend(seed) for seed in range(0, scale.federations, 2)]
    rows = [_row("n_a ≤ n", usual), _row(f"n_a ≤ {HEAVY}n", heavy)]
    header = ("newcomer", "federations", "leaving: bound holds", "joining: bound holds", "joining, as printed: holds")
    outcome = Outcome(judge(usual, heavy, trends), header, rows)
    outcome.write(out)
    _draw(usual, heavy, trends[0], out / "shifts.png")
    return outcome


def random_federation(seed: int, heaviest: float = 1.0) -> tuple[Problem, int]:
    """A federation and the client that leaves or joins, with at most ``heaviest`` times the samples of all others."""
    return random_logistic(seed, heaviest) if seed % 2 else random_quadratic(seed, heaviest)


def random_quadratic(seed: int, heaviest: float = 1.0) -> tuple[Quadratic, int]:
    """Quadratic clients, with condition numbers of up to 30."""
    generator = stream(seed, Purpose.PARTITION)
    sizes, client = _random_sizes(generator, heaviest)
    spread, smoothness = 10 ** generator.uniform(-1, 0.5), 10 ** generator.uniform(0.1, 1.5)
    problem = Quadratic.random(
        seed, clients=len(sizes), dimension=DIMENSION, smoothness=smoothness, spread=spread, samples=sizes
    )
    return problem, client


def random_logistic(seed: int, heaviest: float = 1.0) -> tuple[Logistic, int]:
    """Ridge logistic regression."""
    generator = stream(seed, Purpose.PARTITION)
    sizes, client = _random_sizes(generator, heaviest)
    spread, counts = 10 ** generator.uniform(-1, 0.5), [int(size) for size in sizes]
    return Logistic.random(seed, samples=counts, dimension=DIMENSION, ridge=0.05, spread=spread), client


def _random_sizes(generator: np.random.Generator, heaviest: float) -> tuple[Array, int]:
    """Samples of 3 to 11 clients, and one of these, whose part is drawn anew over two orders of magnitude."""
    sizes = generator.integers(10, 100, int(generator.integers(3, 12))).astype(np.float64)
    client = int(generator.integers(len(sizes)))
    most = np.floor(heaviest * (sizes.sum() - sizes[client]))
    sizes[client] = np.clip(np.ceil(most * 10 ** generator.uniform(-2, 0)), 5, most)
    return sizes, client


def measure(problem: Problem, client: int) -> Shift:
    """The shift between the optima with and without the client; it is the same for leaving and joining."""
    rest = problem.without(client)
    own, others = float(problem.samples[client]), float(rest.samples.sum())
    smoothness, convexity = problem.smoothness, problem.convexity
    apart = float(problem.divergence(rest.optimum)[client])
    together = float(problem.divergence(problem.optimum)[client])
    leaving = departure_bound(
        smoothness=smoothness,
        convexity=convexity,
        samples_of_client=own,
        samples_before=own + others,
        new_divergence=apart,
    )
    joining, printed = (
        arrival_bound(
            smoothness=smoothness, convexity=convexity, samples_of_client=own, samples_before=others, old_divergence=D
        )
        for D in (apart, together)
    )
    squared = float(((problem.optimum - rest.optimum) ** 2).sum())
    return Shift(own, others, squared, leaving, joining, printed)


@dataclass(frozen=True)
class Trend:
    """The same departure with fewer and fewer samples, and with clients more and more alike."""

    samples: Sequence[Shift]
    likeness: Sequence[Shift]


def trend(seed: int) -> Trend:
    """Both trends of a quadratic federation."""
    problem, client = random_quadratic(seed)
    mean = problem.centres.mean(0)
    fewer = [replace(problem, sizes=_scaled(problem.sizes, client, step)) for step in STEPS]
    alike = [replace(problem, centres=mean + step * (problem.centres - mean)) for step in STEPS]
    return Trend([measure(each, client) for each in fewer], [measure(each, client) for each in alike])


def judge(usual: Sequence[Shift], heavy: Sequence[Shift], trends: Sequence[Trend]) -> list[Check]:
    """All that must hold."""
    both = [*usual, *heavy]
    weighty = [shift for shift in heavy if shift.samples > shift.others]
    broken = sum(shift.squared > shift.joining_as_printed for shift in weighty)
    return [
        _held("leaving, Equation 10", [(shift.squared, shift.leaving) for shift in usual]),
        _held("joining, Equation 11 as printed, n_a ≤ n", [(s.squared, s.joining_as_printed) for s in usual]),
        _held(f"joining, Equation 11 mended, n_a ≤ {HEAVY}n", [(s.squared, s.joining) for s in both]),
        Check(
            "joining, Equation 11 as printed needs n_a ≤ n",
            broken > 0,
            f"{broken} of {len(weighty)} newcomers with n_a > n move the optimum farther than it allows",
        ),
        _falling("bound shrinks with fewer samples", [trend.samples for trend in trends]),
        _falling("bound shrinks with more similar data", [trend.likeness for trend in trends]),
    ]


def _held(name: str, pairs: Sequence[tuple[float, float]]) -> Check:
    held = sum(measured <= bound for measured, bound in pairs)
    most = max(measured / bound for measured, bound in pairs)
    return Check(
        f"{name}: shift below the bound", held == len(pairs), f"{held} of {len(pairs)}, at most {most:.3f} of it"
    )


def _falling(name: str, series: Sequence[Sequence[Shift]]) -> Check:
    """Strictly, at every step of every federation."""
    bounds = np.array([[shift.leaving for shift in shifts] for shifts in series])
    falls = int((np.diff(bounds) < 0).all(1).sum())
    ratio = float(np.median(bounds[:, -1] / bounds[:, 0]))
    figures = f"{falls} of {len(series)} federations, to {ratio:.2g} of it at a twentieth (median)"
    return Check(name, falls == len(series), figures)


def _scaled(sizes: Array, client: int, step: float) -> Array:
    scaled = sizes.copy()
    scaled[client] *= step
    return scaled


def _row(name: str, shifts: Sequence[Shift]) -> list[Cell]:
    held = [
        f"{sum(shift.squared <= getattr(shift, form) for shift in shifts)} of {len(shifts)}"
        for form in ("leaving", "joining", "joining_as_printed")
    ]
    return [name, len(shifts), *held]


def _draw(usual: Sequence[Shift], heavy: Sequence[Shift], trend: Trend, path: Path) -> None:
    """Measured shifts over bounds, and how both shrink."""
    figure = new_figure(13, 4.4)
    axes = figure.subplots(1, 3)
    _scatter(axes[0], "leaving, or joining as mended", [*usual, *heavy], "joining")
    _scatter(axes[1], "joining, as printed", [*usual, *heavy], "joining_as_printed")
    for shifts, name, colour in (
        (trend.samples, "its samples", COLOURS[0]),
        (trend.likeness, "distances between clients", COLOURS[1]),
    ):
        axes[2].plot(STEPS, [shift.leaving for shift in shifts], "--", color=colour, label=f"bound, by {name}")
        axes[2].plot(STEPS, [shift.squared for shift in shifts], "o-", color=colour, ms=3, label=f"shift, by {name}")
    panel(axes[2], "a departure, made smaller", "factor", "‖w* − ŵ*‖²")
    axes[2].legend(frameon=False, fontsize=8)
    figure.suptitle(f"Theorem 2: {len(usual) + len(heavy)} random federations")
    save(figure, path)


def _scatter(axis: Axes, title: str, shifts: Sequence[Shift], form: str) -> None:
    for colour, name, chosen in (
        (COLOURS[0], "n_a ≤ n", [shift for shift in shifts if shift.samples <= shift.others]),
        (COLOURS[1], "n_a > n", [shift for shift in shifts if shift.samples > shift.others]),
    ):
        bounds = [getattr(shift, form) for shift in chosen]
        axis.plot(bounds, [shift.squared for shift in chosen], "o", color=colour, ms=3.5, alpha=0.6, lw=0, label=name)
    panel(axis, title, "bound", "measured ‖w* − ŵ*‖²")
    ends = np.array(
        [
            min(min(getattr(shift, form), shift.squared) for shift in shifts),
            max(getattr(shift, form) for shift in shifts),
        ]
    )
    axis.plot(ends, ends, color="black", lw=1, ls="--", label="bound")
    axis.legend(frameon=False, fontsize=8)
