"""Who holds how many samples of which class: in words, and as the bubble plot of federated papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from rich.table import Table

from efl.track.canvas import new_figure, save
from efl.track.figures import COLOURS

Counts = NDArray[np.int64]

MOST_BUBBLES = 120  # clients; more than that are drawn as a heat map, bubbles would be dots
LISTED = 12


def describe(counts: Counts, train: Sequence[int], test: Sequence[int]) -> list[tuple[str, str]]:
    """What the holdings (clients, classes) come to, as pairs of text."""
    held = (counts > 0).sum(1)
    return [
        ("clients", f"{len(counts):,}"),
        ("samples", f"{sum(train):,} to train on, {sum(test):,} to test on"),
        ("classes", f"{(counts.sum(0) > 0).sum()}"),
        ("training samples per client", _spread(np.asarray(train))),
        ("classes per client", _spread(held)),
        ("share of its largest class", f"{np.mean(counts.max(1) / counts.sum(1)):.0%} on average"),
    ]


def listing(counts: Counts, train: Sequence[int], test: Sequence[int]) -> Table:
    """The first clients one by one, with their most frequent classes."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("client", "train", "test"):
        table.add_column(title, justify="right")
    table.add_column("class: samples")
    for client in range(min(LISTED, len(counts))):
        order = np.argsort(-counts[client], kind="stable")[:6]
        classes = [f"{label}: {counts[client, label]:,}" for label in order if counts[client, label]]
        more = int((counts[client] > 0).sum()) - len(classes)
        text = ", ".join(classes) + (f" and {more} more" if more else "")
        table.add_row(str(client), f"{train[client]:,}", f"{test[client]:,}", text)
    if len(counts) > LISTED:
        table.add_row("…", "", "", f"and {len(counts) - LISTED:,} more clients")
    return table


def draw_holdings(counts: Counts, title: str, path: Path) -> None:
    """Bubbles (client, class) as large as the number of samples, with the clients' totals above them."""
    shown = np.flatnonzero(counts.sum(0))
    clients, classes = len(counts), len(shown)
    size = (min(15.0, 3.5 + 0.11 * clients), min(12.0, 2.6 + 0.22 * classes))
    figure = new_figure(*size)
    above, main = figure.subplots(2, 1, sharex=True, height_ratios=[1, max(2.0, size[1] - 1.5)])
    above.bar(np.arange(clients), counts.sum(1), width=0.8, color=COLOURS[0], alpha=0.6)
    above.set(title=title, ylabel="samples")
    above.title.set_fontsize(11)
    if clients <= MOST_BUBBLES:
        _bubbles(main, counts[:, shown])
    else:
        cells = np.ma.masked_equal(counts[:, shown].T, 0)
        scale = "log" if cells.max() > 20 * cells.min() else "linear"
        image = main.imshow(cells, aspect="auto", origin="lower", cmap="viridis", norm=scale)
        figure.colorbar(image, ax=main, label="samples")
    step = max(1, classes // 25)
    main.set_yticks(np.arange(classes)[::step], [str(label) for label in shown[::step]])
    main.set(xlabel="client", ylabel="class", ylim=(-0.8, classes - 0.2), xlim=(-0.8, clients - 0.2))
    for axis in (above, main):
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def _bubbles(axis: Axes, counts: Counts) -> None:
    """The largest bubble fills its cell."""
    clients, classes = np.nonzero(counts)
    axis.set(xlim=(-0.8, len(counts) - 0.2), ylim=(-0.8, counts.shape[1] - 0.2))
    axis.figure.canvas.draw()  # settles the layout, so that a cell's size is known
    corner, origin = axis.transData.transform((1, 1)), axis.transData.transform((0, 0))
    points = (corner - origin) * 72 / axis.figure.dpi
    largest = max(4.0, 1.6 * float(points.min())) ** 2
    bubbles = axis.scatter(
        clients,
        classes,
        s=largest * counts[clients, classes] / counts.max(),
        color=COLOURS[1],
        alpha=0.7,
        linewidths=0,
    )
    axis.grid(alpha=0.15)
    to_samples = counts.max() / largest
    sizes = bubbles.legend_elements(
        "sizes", num=3, alpha=0.7, color=COLOURS[1], func=lambda s: np.asarray(s) * to_samples
    )
    axis.legend(*sizes, title="samples", loc="upper left", bbox_to_anchor=(1, 1), frameon=False, labelspacing=1.2)


def _spread(values: Counts) -> str:
    low, middle, high = int(values.min()), float(np.median(values)), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} … {high:,}, half of them up to {middle:,.0f}"
