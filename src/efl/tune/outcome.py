"""What a search leaves: the best experiment of each algorithm as a file, a table, and a picture of all trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from efl.algorithms.search import Range
from efl.storage import write_atomically
from efl.track.canvas import new_figure, save, style
from efl.track.figures import COLOURS
from efl.track.tables import markdown
from efl.track.text import mean_and_deviation
from efl.tune.search import Search, Tried
from efl.tune.space import default_of

HEADER = ["algorithm", "default", "tuned", "trials", "pruned", "client-steps", "chosen"]
PRUNED = "#999999"


def write(searches: Sequence[Search], out: Path) -> str:
    """best/NAME.toml for each algorithm, table.md and search.png; returns the table."""
    best = out / "best"
    best.mkdir(exist_ok=True)
    for search in searches:
        write_atomically(best / f"{search.slug}.toml", search.found().experiment.to_toml().encode())
    table = markdown(HEADER, [_row(search) for search in searches])
    (out / "table.md").write_text(table)
    draw(searches, out / "search.png")
    return table


def _row(search: Search) -> list[str]:
    found, tried = search.found(), search.tried()
    spent = sum(one.rounds for one in tried) * search.steps_per_round
    return [
        search.label,
        *(mean_and_deviation(values, share=search.share) for values in (found.default, found.best)),
        str(len(tried)),
        str(sum(one.value is None for one in tried)),
        f"{spent:,}",
        settings_text(search) or "the default",
    ]


def settings_text(search: Search) -> str:
    """What was chosen, key by key."""
    return ", ".join(f"{_short(key)} = {_text(value)}" for key, value in search.found().values.items())


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _short(key: str) -> str:
    return "η" if key == "training.learning_rate" else key.rpartition(".")[2]


def draw(searches: Sequence[Search], path: Path) -> None:
    """A row for each algorithm: the best so far over client-steps, then every trial over each value searched."""
    columns = 1 + max(len(search.space) for search in searches)
    figure = new_figure(3.6 * columns, 2.7 * len(searches))
    axes = figure.subplots(len(searches), columns, squeeze=False)
    for search, row, colour in zip(searches, axes, COLOURS * len(searches), strict=False):
        tried = [(one, value) for one in search.tried() if (value := _last(one)) is not None]
        _draw_progress(row[0], search, [one for one, _ in tried], colour)
        for axis, key in zip(row[1:], search.space, strict=False):
            _draw_values(axis, search, key, tried, colour)
        for axis in row[1 + len(search.space) :]:
            axis.set_visible(False)
    handles = dict(zip(*reversed(axes[0][1].get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    save(figure, path)


def _draw_progress(axis: Axes, search: Search, tried: Sequence[Tried], colour: str) -> None:
    better = max if search.higher_is_better else min
    steps, so_far, total = list[int](), list[float](), 0
    for one in tried:
        total += one.rounds * search.steps_per_round
        if one.value is not None or so_far:
            steps.append(total)
            so_far.append(better([*([] if one.value is None else [one.value]), *so_far[-1:]]))
    axis.step(steps, [_scaled(search, value) for value in so_far], where="post", color=colour, lw=1.6)
    axis.plot(steps[:1], [_scaled(search, value) for value in so_far[:1]], "D", color="black", ms=5)
    style(axis, f"{search.label}: best so far", "client-steps", _label(search))
    axis.title.set_fontsize(10)


def _draw_values(axis: Axes, search: Search, key: str, tried: Sequence[tuple[Tried, float]], colour: str) -> None:
    dimension, chosen = search.space[key], search.found().values
    usual = default_of(key, search.experiment)

    def points(some: Sequence[tuple[Tried, float]], mark: str, label: str, size: float, colour: str) -> None:
        edge = "black" if mark == "*" else colour
        at = [one.values.get(key, usual) for one, _ in some]
        known = [(x, _scaled(search, y)) for x, (_, y) in zip(at, some, strict=True) if x is not None]
        axis.plot(*zip(*known, strict=True) if known else ([], []), mark, mec=edge, color=colour, ms=size, label=label)

    points([pair for pair in tried if pair[0].value is None], "x", "pruned, last evaluation", 5, PRUNED)
    points([pair for pair in tried if pair[0].value is not None], "o", "trial", 4, colour)
    points([pair for pair in tried if pair[0].number == 0], "D", "default", 6, "black")
    points([pair for pair in tried if pair[0].values == chosen][:1], "*", "chosen", 13, "#F0E442")
    style(axis, "", _short(key), "")
    if isinstance(dimension, Range) and dimension.log:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())


def _last(tried: Tried) -> float | None:
    """What a trial came to, or its last evaluation."""
    return tried.value if tried.value is not None else tried.curve[max(tried.curve)] if tried.curve else None


def _scaled(search: Search, value: float) -> float:
    return 100 * value if search.share else value


def _label(search: Search) -> str:
    name = search.merit.replace("_", " ")
    return f"{name}, %" if search.share else name
