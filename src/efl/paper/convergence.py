"""A way of taking part, measured: its curve beside Theorem 1's bound, what must hold of it, and its panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from efl.paper.checks import Check, panel
from efl.theory.constants import Array
from efl.track.canvas import new_figure, save
from efl.track.figures import COLOURS

TOLERANCE = 0.15  # of slopes and of the height of a stall
LONG = 30  # with τE ≥ 30γ the offset γ no longer bends the log-log plot over τ by more than about a tenth


@dataclass(frozen=True, eq=False)
class Curve:
    """What was measured, and what the theory says of it."""

    name: str
    errors: Array  # (rounds + 1, seeds): ‖w_τ − w*‖²
    bound: Array  # (rounds + 1,)
    falling: range  # rounds over which it must fall like 1/(τE + γ), τ counted from their start; empty if nowhere
    stall: float | None  # where it must end, if not at 0
    offset: float  # γ/E, in rounds
    ceiling: float  # J/E, the limit of the bound's second term where H_τ = τ
    farthest: float  # of any model from the optimum

    @property
    def mean(self) -> Array:
        """E‖w_τ − w*‖², over seeds."""
        return np.asarray(self.errors.mean(1))

    @property
    def end(self) -> float:
        """The mean over the last tenth of the rounds."""
        return float(self.mean[-len(self.mean) // 10 :].mean())

    @property
    def tightest(self) -> float:
        """The largest measured share of the bound after round 0, where the two agree by definition."""
        return float((self.mean / self.bound)[1:].max())

    @property
    def is_long(self) -> bool:
        """Whether it had the time to show a plain 1/τ."""
        return len(self.falling) >= LONG * self.offset

    @property
    def slope(self) -> float:
        """The slope of log error over log(τE + γ), the theorem's own time."""
        return self._slope(self.offset)

    @property
    def plain_slope(self) -> float:
        """The slope of log error over log τ."""
        return self._slope(0)

    def _slope(self, offset: float) -> float:
        """Fitted to the last decade of the rounds in which it must fall."""
        count = len(self.falling)
        rounds = np.unique(np.geomspace(count / 10, count, 200).astype(np.int64))
        errors = self.mean[self.falling.start + rounds]
        return float(np.polyfit(np.log(rounds + offset), np.log(errors), 1)[0])


def judge(label: str, curve: Curve) -> list[Check]:
    """All that must hold of one curve."""
    checks = [_below(label, curve)]
    if curve.falling:
        checks.append(_falls(label, curve))
    if curve.stall is not None:
        checks.append(_stalls(label, curve, curve.stall))
    return checks


def _below(label: str, curve: Curve) -> Check:
    """The bound holds in every round; round 0 has equality, up to rounding."""
    held = int((curve.mean <= curve.bound * (1 + 1e-12)).sum())
    rounds, seeds = curve.errors.shape
    figures = f"{held} of {rounds} rounds, {seeds} seeds, at most {curve.tightest:.2g} of it after the start"
    return Check(f"{label}: error below the bound", held == rounds, figures)


def _falls(label: str, curve: Curve) -> Check:
    """A slope of −1: over the theorem's time, and over plain rounds where there were enough of them."""
    slopes = [curve.slope, curve.plain_slope] if curve.is_long else [curve.slope]
    fits = all(abs(slope + 1) <= TOLERANCE for slope in slopes)
    figures = f"slope {curve.slope:.3f} over τE + γ, {curve.plain_slope:.3f} over τ, wanted −1 ± {TOLERANCE}"
    return Check(f"{label}: falls like 1/τ", fits, figures + ("" if curve.is_long else " (too short to judge over τ)"))


def _stalls(label: str, curve: Curve, height: float) -> Check:
    near = abs(curve.end / height - 1) <= TOLERANCE and curve.end <= curve.ceiling
    figures = f"ends at {curve.end:.3g}, theory {height:.3g}, below J/E = {curve.ceiling:.3g}"
    return Check(f"{label}: stalls where the theory says", near, figures)


def draw(title: str, curves: Sequence[Curve], path: Path) -> None:
    """A panel for each curve, one legend for all."""
    figure = new_figure(12, 7)
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for axis, curve, colour in zip(axes.flat, curves, COLOURS, strict=False):
        _draw(axis, curve, colour)
        axis.label_outer()
    legend = {
        "Theorem 1’s bound": Line2D([], [], color="black", lw=1.2, ls="--"),
        "measured mean": Line2D([], [], color=COLOURS[0], lw=1.6),
        "80 % of seeds": Patch(color=COLOURS[0], alpha=0.2, lw=0),
        "slope −1": Line2D([], [], color="grey", lw=1),
        "where it must stall": Line2D([], [], color="black", lw=1, ls=":"),
    }
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend), frameon=False)
    figure.suptitle(title)
    save(figure, path)


def _draw(axis: Axes, curve: Curve, colour: str) -> None:
    rounds = np.arange(len(curve.mean)) + 1
    low, high = np.quantile(curve.errors, (0.1, 0.9), axis=1)
    axis.fill_between(rounds, low, high, color=colour, alpha=0.2, lw=0)
    axis.plot(rounds, curve.mean, color=colour, lw=1.6)
    axis.plot(rounds, curve.bound, color="black", lw=1.2, ls="--")
    if curve.stall is not None:
        axis.axhline(curve.stall, color="black", lw=1, ls=":")
    if curve.falling:
        decade = np.geomspace(len(curve.falling) / 10, len(curve.falling), 50)
        first = curve.mean[curve.falling.start + int(decade[0])]
        axis.plot(curve.falling.start + decade, 0.25 * first * decade[0] / decade, color="grey", lw=1)
        axis.text(0.04, 0.06, f"slope {curve.plain_slope:.2f}", transform=axis.transAxes)
    panel(axis, curve.name, "round", "E‖w − w*‖²")
