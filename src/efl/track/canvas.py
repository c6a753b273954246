"""Pictures drawn with Matplotlib, without its global state: no back end is chosen, no figure stays registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that can be drawn without a display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style(axis: Axes, title: str, x_label: str = "", y_label: str = "", **more: Any) -> None:
    """Labels, a light grid, no frame above and to the right; ``more`` as for ``Axes.set``."""
    axis.set(title=title, xlabel=x_label, ylabel=y_label, **more)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as its suffix says."""
    figure.savefig(path, dpi=130)
