"""The pictures of docs/performance.md that elastic-fl's own measurements make, and the lines that the page quotes.

    python scripts/performance_figures.py [--out docs] [--rounds 15] [--only speed|scale]

draws speed.png (`efl bench speed`) and scale.png (`efl bench scale`). peers.png comes from bench/peers/run.py.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from efl.bench import scale, speed

OURS, PLAIN = "#C8553D", "#8DA0B3"
MIDDLE = {"clients": 1000, "cohort": 10, "network": "mlp200", "workers": 1}  # what stays while one thing grows
GROWING = {
    "clients": ("clients", lambda point: point.clients),
    "cohort": ("cohort", lambda point: point.cohort),
    "network": ("parameters", lambda point: point.parameters),
    "workers": ("workers", lambda point: point.workers),
}


def draw_speed(speeds: Sequence[speed.Speed], path: Path) -> None:
    """A panel for each network: the plain loop and ours."""
    figure, axes = plt.subplots(1, len(speeds), figsize=(3.4 * len(speeds), 1.7), sharey=True, layout="constrained")
    for axis, measured in zip(axes, speeds, strict=True):
        names = ["elastic-fl", "plain PyTorch loop"]
        bars = axis.barh(names, [measured.ours, measured.plain], color=[OURS, PLAIN], height=0.65)
        texts = [f"{measured.ours:,.0f}  ({measured.ratio:.1f} ×)", f"{measured.plain:,.0f}"]
        axis.bar_label(bars, texts, padding=3, fontsize=8)
        axis.set(title=measured.what, xlabel="samples/s", xlim=(0, 1.6 * max(measured.ours, measured.plain)))
        axis.xaxis.set_major_locator(plt.MaxNLocator(4))
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.tick_params(length=0, labelsize=9)
        tidy(axis, "top", "right", "left")
    axes[0].invert_yaxis()
    save(figure, path)


def draw_scale(points: Sequence[scale.Point], path: Path) -> None:
    """Round time above, memory below, against each thing that grows."""
    figure, axes = plt.subplots(2, len(GROWING), figsize=(11, 4.6), sharex="col", sharey="row", layout="constrained")
    for column, (thing, (label, value)) in enumerate(GROWING.items()):
        others = {name: fixed for name, fixed in MIDDLE.items() if name != thing}
        line = [point for point in points if all(getattr(point, name) == fixed for name, fixed in others.items())]
        line.sort(key=value)
        x = [value(point) for point in line]
        names = [point.network for point in line] if thing == "network" else []
        curve(axes[0, column], x, [1e3 * point.round for point in line], names)
        curve(axes[1, column], x, [point.memory for point in line], names)
        axes[1, column].set(xlabel=label, xscale="log")
        if thing in ("cohort", "workers"):
            axes[1, column].set_xticks(x, [str(number) for number in x])
            axes[1, column].minorticks_off()
    axes[0, 0].set(ylabel="a round, ms", yscale="log")
    axes[1, 0].set(ylabel="memory, MB", ylim=(0, 1.15 * max(point.memory for point in points)))
    save(figure, path)


def curve(axis: Axes, x: Sequence[float], y: Sequence[float], names: Sequence[str]) -> None:
    """One line with its points; points that have names have no line, for they are different kinds of things."""
    axis.plot(x, y, "o" if names else "-o", color=OURS, markersize=4, lw=1.6)
    for number, (name, *where) in enumerate(zip(names, x, y, strict=False)):
        beside = (0, -13 if number % 2 else 6)  # neighbours' names do not meet
        axis.annotate(name, where, beside, textcoords="offset points", ha="center", fontsize=8)
    axis.margins(x=0.15)
    axis.grid(alpha=0.25)
    tidy(axis, "top", "right")


def tidy(axis: Axes, *spines: str) -> None:
    """Without needless frames."""
    axis.title.set_fontsize(10)
    axis.spines[list(spines)].set_visible(False)


def save(figure: plt.Figure, path: Path) -> None:
    """As a small PNG."""
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    """Measure, say, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=["speed", "scale"])
    options = parser.parse_args()
    pictures: dict[str, tuple[Callable, Callable]] = {
        "speed": (speed.measure, draw_speed),
        "scale": (scale.measure, draw_scale),
    }
    for name, (measure, draw) in pictures.items():
        if options.only in (None, name):
            results = []
            for result in measure(options.rounds):
                print(result, flush=True)
                results.append(result)
            draw(results, options.out / f"{name}.png")


if __name__ == "__main__":
    main()
