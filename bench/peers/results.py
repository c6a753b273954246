"""What was measured, as a table and as a picture."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display needed

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

Results = Mapping[str, tuple[float, float]]  # framework: samples a second, how many times as fast the first one is
FIRST, OTHERS = "#C8553D", "#8DA0B3"


def table(results: Mapping[str, Results]) -> str:
    """Markdown, a line for each network and a column for each framework."""
    names = list(next(iter(results.values())))
    lines = [["samples/s", *names], ["---"] * (1 + len(names))]
    for network, measured in results.items():
        first, *others = (f"{reached:,.0f}" for reached, _ in measured.values())
        ratios = [f" ({ratio:.2f} ×)" for _, ratio in measured.values()][1:]
        lines.append([network, first, *(text + ratio for text, ratio in zip(others, ratios, strict=True))])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def draw(results: Mapping[str, Results], path: Path) -> None:
    """A panel for each network, a bar for each framework."""
    figure, axes = plt.subplots(
        1, len(results), figsize=(3.6 * len(results), 2.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (network, measured) in zip(axes.flat, results.items(), strict=True):
        _bars(axis, network, measured)
    axes.flat[0].invert_yaxis()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bars(axis: Axes, network: str, measured: Results) -> None:
    speeds = [reached for reached, _ in measured.values()]
    bars = axis.barh(list(measured), speeds, color=[FIRST] + [OTHERS] * (len(speeds) - 1), height=0.7)
    ratios = [
        f"{reached:,.0f}" + (f"   we: {ratio:.1f} ×" if bar else "")
        for bar, (reached, ratio) in enumerate(measured.values())
    ]
    axis.bar_label(bars, ratios, padding=3, fontsize=8)
    axis.set(title=network, xlabel="samples/s", xlim=(0, 1.5 * max(speeds)))
    axis.title.set_fontsize(10)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.set_major_locator(plt.MaxNLocator(4))
    axis.tick_params(length=0, labelsize=9)
    axis.spines[["top", "right", "left"]].set_visible(False)
