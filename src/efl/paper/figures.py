"""Figures 1 to 3: curves of accuracy (and loss) in the paper's arrangement, a row of panels for each thing shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efl.algorithms.search import Range
from efl.paper.data import DATA, ScaleName, setting
from efl.paper.results import Results, latex, spread, values_of
from efl.paper.statistics import bold, clear_winner
from efl.paper.study import Method, Setting, Study
from efl.runs.directory import Record
from efl.track.figures import BYTES, COLOURS, Panel, Series
from efl.track.plots import draw_panels
from efl.track.tables import markdown
from efl.tune.search import Effort

SIZES: Mapping[ScaleName, tuple[int, Effort]] = {
    "smoke": (1, Effort(2, 2, 1, 0)),
    "small": (1, Effort(4, 20, 1, 1)),
    "medium": (3, Effort(6, 30, 1, 1)),
    "full": (3, Effort(12, 100, 3, 2)),
}
GLOBAL_ONLY = {"evaluate_personalised_every": "never"}
ROUNDS, GRADIENTS = "round", "gradient evaluations"


@dataclass(frozen=True)
class Shown:
    """A row of panels: a figure of the records, over what, and what the axis says."""

    key: str
    label: str
    over: str = ROUNDS


@dataclass(frozen=True)
class Figure:
    """A study drawn as panels: for each of ``shown`` one in every setting, ``columns`` to a row."""

    study: Study
    shown: Sequence[Shown]
    columns: int


def figure1(scale: ScaleName, datasets: Sequence[str] = ("cifar100", "emnist")) -> Figure:
    """Accuracy where clients are alike and where they hold few classes each, by rounds and by work; personalised."""
    few = {"smoke": ("classes:2",), "small": ("classes:5",), "full": ("classes:20", "classes:5")}
    medium = {"cifar100": ("classes:10", "classes:5", "classes:2"), "emnist": ("classes:30", "classes:10")}
    sizes = {name: f"{name} vgg11" if (scale, name) == ("medium", "cifar100") else name for name in datasets}
    settings = [
        setting(
            scale,
            sizes[name],
            f"{name}, {partition}",
            federation={"partition": partition},
            training={"evaluate_personalised_every": max(1, DATA[scale][sizes[name]]["training"]["rounds"] // 6)},
        )
        for name in datasets
        for partition in ("iid", *(medium[name] if scale == "medium" else few[scale]))
    ]
    methods = (
        Method("FedProx", "fedprox"),
        Method("SCAFFOLD", "scaffold"),
        Method("APFL", "apfl", gradients=2),
        Method("EFL", "efl"),
    )
    shown = (
        Shown("accuracy", "mean accuracy"),
        Shown("accuracy", "mean accuracy", GRADIENTS),
        Shown("personalised_accuracy", "accuracy of personalised models"),
    )
    return Figure(_study("figure1", scale, settings, methods), shown, len(settings))


def figure2(scale: ScaleName, datasets: Sequence[str] = ("mnist", "cifar100", "sent140", "shakespeare")) -> Figure:
    """What the elastic term brings: λ = 0 against the best λ at the same η; accuracy above, training loss below.

    At ``medium`` also with three times η, where training without it may be unstable.
    """
    methods = (
        Method("λ = 0", "efl", {"elasticity": 0.0}, {}),
        Method("best λ", "efl", {}, {"algorithm.elasticity": Range(0.03, 3.0)}),
    )
    settings: list[Setting] = []
    for name in datasets:
        settings.append(setting(scale, name, training=GLOBAL_ONLY))
        if scale == "medium":
            fast = {"learning_rate": 3 * DATA[scale][name]["training"]["learning_rate"], **GLOBAL_ONLY}
            settings.append(setting(scale, name, f"{name}, 3η", training=fast))
    shown = (Shown("accuracy", "mean accuracy"), Shown("train_loss", "training loss"))
    return Figure(_study("figure2", scale, settings, methods), shown, len(settings))


def figure3(scale: ScaleName, datasets: Sequence[str] = ("sent140", "shakespeare")) -> Figure:
    """Few clients per round: EFL against FedAvg at several rates of participation; at ``medium`` with stragglers."""
    cohorts = {"smoke": (2, 5), "small": (1, 2, 5), "medium": (1, 2, 5, 10), "full": (1, 2, 5, 10)}[scale]
    shares = {"smoke": (0.0, 0.9), "medium": (0.0, 0.5, 0.9)}.get(scale, (0.0,))
    rounds = {"rounds": 300, "evaluate_every": 10} if scale == "medium" else {}
    settings = [
        setting(
            scale,
            name,
            f"{name}, {cohort} clients per round" + (f", {share:.0%} stragglers" if share else ""),
            federation={"clients": 100} if scale == "medium" else {},
            training={"cohort": cohort, **rounds, **GLOBAL_ONLY},
            fleet={"stragglers": share},
        )
        for name in datasets
        for share in shares
        for cohort in cohorts
    ]
    methods = [Method("FedAvg", "fedavg"), Method("EFL", "efl")]
    if len(shares) > 1:
        methods[1:1] = [
            Method("FedAvg with incomplete work", "fedavg", {"incomplete": "use"}),
            Method("FedProx", "fedprox"),
        ]
    return Figure(_study("figure3", scale, settings, methods), (Shown("accuracy", "mean accuracy"),), len(cohorts))


FIGURES: Mapping[str, Callable[..., Figure]] = {"figure1": figure1, "figure2": figure2, "figure3": figure3}


def _study(name: str, scale: ScaleName, settings: Sequence[Setting], methods: Sequence[Method]) -> Study:
    seeds, effort = SIZES[scale]
    return Study(name, settings, methods, seeds, effort)


def draw(figure: Figure, results: Results, out: Path) -> None:
    """figure.png."""
    panels = [
        Panel(one.name, shown.over, shown.label, _curves(figure.study, results, one.name, shown))
        for shown in figure.shown
        for one in figure.study.settings
    ]
    draw_panels(panels, out / "figure.png", figure.columns)


def write(figure: Figure, results: Results, out: Path) -> str:
    """figure.png, and the best accuracies as table.md and table.tex; returns the former."""
    draw(figure, results, out)
    study = figure.study
    header = ["", *(one.name for one in study.settings)]
    runs = {(m.name, s.name): results.final(s.name, m.name) for m in study.methods for s in study.settings}
    winners = {
        one.name: clear_winner({m.name: values_of(runs[m.name, one.name], "bmta_global") for m in study.methods})
        for one in study.settings
    }
    rows = [
        [method.name, *(_cell(runs[method.name, one.name], winners[one.name] == method.name) for one in study.settings)]
        for method in study.methods
    ]
    table = markdown(header, rows)
    (out / "table.md").write_text(table)
    (out / "table.tex").write_text(latex(header, rows, "Best mean accuracy of the global model, in percent") + "\n")
    return table


def _cell(runs: Sequence[Record], clearly_best: bool) -> str:
    text = spread(runs, "bmta_global")
    return bold(text) if clearly_best else text


def _curves(study: Study, results: Results, setting_name: str, shown: Shown) -> list[Series]:
    """A curve for each method, with a band from the least to the greatest where there are several seeds."""
    curves: list[Series] = []
    for number, method in enumerate(study.methods):
        records = results.final(setting_name, method.name)
        runs = [record["curve"] for record in records]
        points = [[point[shown.key] for point in run if point[shown.key] is not None] for run in runs]
        length = min((len(values) for values in points), default=0)
        if length == 0:
            continue
        training = records[0]["experiment"]["training"]
        a_round = training["cohort"] * training["local_steps"] * method.gradients if shown.over == GRADIENTS else 1
        known = [[point for point in run if point[shown.key] is not None][:length] for run in runs]
        if shown.over == BYTES:
            x = np.mean([[point["sent_up"] + point["sent_down"] for point in run] for run in known], axis=0)
        else:
            x = np.array([a_round * (point["round"] + 1) for point in known[0]], dtype=np.float64)
        y = np.array([values[:length] for values in points])
        low, high = (y.min(0), y.max(0)) if len(y) > 1 else (None, None)
        curves.append(Series(method.name, x, y.mean(0), low, high, colour=COLOURS[number]))
    return curves
