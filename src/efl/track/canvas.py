"""Pictures drawn with Matplotlib, without its global state: no back end is chosen, no figure stays registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Inches around panels and between them, with room for titles, ticks and labels; and for a line of a legend.
LEFT, RIGHT, TOP, BOTTOM, BESIDE, BELOW, LEGEND = 0.75, 0.2, 0.3, 0.5, 0.9, 0.8, 0.23


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that can be drawn without a display; margins fit what is in it."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels_with_legend(width: float, height: float, rows: int, columns: int, lines: int) -> tuple[Figure, list[Axes]]:
    """Panels with fixed margins and so many lines for a legend below: fitting margins takes as long as drawing."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    bottom = BOTTOM + LEGEND * lines + 0.05
    axes = figure.subplots(
        rows,
        columns,
        squeeze=False,
        gridspec_kw={
            "left": LEFT / width,
            "right": 1 - RIGHT / width,
            "top": 1 - TOP / height,
            "bottom": bottom / height,
            "wspace": BESIDE * columns / (width - LEFT - RIGHT - BESIDE * (columns - 1)),
            "hspace": BELOW * rows / (height - TOP - bottom - BELOW * (rows - 1)),
        },
    )
    return figure, list(axes.flat)


def style(axis: Axes, title: str, x_label: str = "", y_label: str = "", **more: Any) -> None:
    """Labels, a light grid, no frame above and to the right; ``more`` as for ``Axes.set``."""
    axis.set(title=title, xlabel=x_label, ylabel=y_label, **more)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as its suffix says."""
    figure.savefig(path, dpi=130)
