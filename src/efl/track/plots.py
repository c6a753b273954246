"""The figures as PNG, drawn with Matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator

from efl.track.canvas import panels_with_legend, save, style
from efl.track.figures import BYTES, COLOURS, Panel, Participation, Stack
from efl.wire.ledger import KINDS

SILENT = "#C8553D"
IN_A_LINE = 4  # names of a legend, at most
LETTERS, BESIDE = 11.5, 6  # of a legend in an inch; as many as its line and the space beside a name take


def draw_panels(panels: Sequence[Panel], path: Path, columns: int = 2) -> None:
    """All panels in one picture, with one legend."""
    names = dict.fromkeys(series.name for panel in panels for series in panel.series)
    width = 5.2 * columns
    in_a_line = names_in_a_line(list(names), width)
    rows, lines = -(-len(panels) // columns), -(-len(names) // in_a_line)
    figure, axes = panels_with_legend(width, 3.4 * rows, rows, columns, lines)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    handles: dict[str, Artist] = {}
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel)
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    _legend(figure, handles, in_a_line)
    save(figure, path)


def names_in_a_line(names: Sequence[str], width: float) -> int:
    """How many of a legend's names fit side by side into so many inches.

    >>> names_in_a_line(["FedAvg", "EFL"], 5.2), names_in_a_line(["EFL uncompressed", "EFL"], 5.2)
    (4, 2)
    """
    longest = max(map(len, names), default=0)
    return max(1, min(IN_A_LINE, int(LETTERS * width / (longest + BESIDE))))


def _legend(figure: Figure, handles: Mapping[str, Artist], most: int) -> None:
    if handles:
        columns = min(most, len(handles))
        figure.legend(
            handles.values(), handles.keys(), loc="lower center", ncols=columns, frameon=False, borderaxespad=0.1
        )


def _draw(axis: Axes, panel: Panel) -> None:
    for series in panel.series:
        line = "--" if series.dashed else "-"
        marker = "o" if len(series.x) < 3 else None
        axis.plot(series.x, series.y, line, marker=marker, markersize=4, color=series.colour, label=series.name, lw=1.6)
        if series.low is not None and series.high is not None:
            axis.fill_between(series.x, series.low, series.high, color=series.colour, alpha=0.15, lw=0)
    style(axis, panel.title, panel.x_label, panel.y_label)
    if panel.log_x:
        axis.set_xscale("log")
    elif panel.x_label == "round":
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.x_label == BYTES:
        axis.xaxis.set_major_formatter(EngFormatter("B"))
    axis.title.set_fontsize(10)


def draw_stacks(stacks: Sequence[Stack], path: Path) -> None:
    """Bytes per round by kind, one panel for each direction."""
    figure, axes = panels_with_legend(10.4, 3.4, 1, len(stacks), 1)
    for axis, stack in zip(axes, stacks, strict=True):
        below = np.zeros(1)
        for kind, values in stack.kinds.items():
            edges, top = np.arange(len(values) + 1) + 0.5, below + values / 1e3
            below = np.broadcast_to(below, top.shape)
            axis.stairs(top, edges, baseline=below, fill=True, color=COLOURS[KINDS.index(kind)])
            below = top
        axis.set(title=f"bytes {stack.title}", xlabel="round", ylabel="kB per round")
        axis.title.set_fontsize(10)
        axis.spines[["top", "right"]].set_visible(False)
    handles = {kind: Patch(color=COLOURS[KINDS.index(kind)]) for stack in stacks for kind in stack.kinds}
    _legend(figure, handles, len(KINDS))
    save(figure, path)


def draw_participation(data: Participation, path: Path) -> None:
    """Client × round: how much of its work each sampled client did."""
    clients, rounds = data.share.shape
    figure, (axis,) = panels_with_legend(9, min(10, 1.6 + 0.11 * clients), 1, 1, 0)
    done = np.ma.masked_invalid(np.where(data.share > 0, data.share, np.nan))
    image = axis.imshow(done, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest", origin="lower")
    silent = np.ma.masked_not_equal(np.where(data.share == 0, 1.0, 0.0), 1.0)
    axis.imshow(silent, aspect="auto", cmap=ListedColormap([SILENT]), interpolation="nearest", origin="lower")
    client, round_ = np.nonzero(data.dropped)
    axis.plot(round_, client, "x", color="white", markersize=3, markeredgewidth=0.7)
    figure.colorbar(image, label="share of the E local steps done", fraction=0.06, pad=0.03)
    legend = [Patch(color=SILENT, label="sampled, no reply")]
    title = "Who took part when" + (" (×: work not used)" if data.dropped.any() else "")
    axis.set(title=title, xlabel="round", ylabel="client")
    axis.set_xlim(-0.5, rounds - 0.5)
    figure.legend(handles=legend, loc="lower right", frameon=False, borderaxespad=0.1)
    save(figure, path)
