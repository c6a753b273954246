"""Figures 1 to 3: curves of accuracy (and loss) in the paper's arrangement, a row of panels for each thing shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efl.paper.data import DATA, ScaleName, setting
from efl.paper.results import Results, spread
from efl.paper.study import Candidate, Method, Setting, Study
from efl.track.figures import COLOURS, Panel, Series
from efl.track.plots import draw_panels
from efl.track.tables import markdown

SIZES: Mapping[ScaleName, tuple[int, int, int]] = {"smoke": (1, 2, 2), "small": (1, 3, 20), "full": (3, 3, 100)}

GLOBAL_ONLY = {"evaluate_personalised_every": "never"}


@dataclass(frozen=True)
class Figure:
    """A study drawn as panels: for each of ``keys`` one in every setting, ``columns`` to a row."""

    study: Study
    keys: Mapping[str, str]
    columns: int


def figure1(scale: ScaleName, datasets: Sequence[str] = ("cifar100", "emnist")) -> Figure:
    """Accuracy where clients are alike and where they hold few classes each; below, of personalised models."""
    few = {"smoke": ("classes:2",), "small": ("classes:5",), "full": ("classes:20", "classes:5")}
    partitions = ("iid", *few[scale])
    settings = [
        setting(
            scale,
            name,
            f"{name}, {partition}",
            federation={"partition": partition},
            training={"evaluate_personalised_every": max(1, DATA[scale][name]["training"]["rounds"] // 6)},
        )
        for name in datasets
        for partition in partitions
    ]
    methods = (
        Method("FedProx", "fedprox"),
        Method("SCAFFOLD", "scaffold"),
        Method("APFL", "apfl"),
        Method("EFL", "efl"),
    )
    keys = {"accuracy": "mean accuracy", "personalised_accuracy": "accuracy of personalised models"}
    return Figure(_study("figure1", scale, settings, methods), keys, len(settings))


def figure2(scale: ScaleName, datasets: Sequence[str] = ("mnist", "cifar100", "sent140", "shakespeare")) -> Figure:
    """What the elastic term brings: λ = 0 against the best λ at the same η; accuracy above, training loss below."""
    strengths = tuple(Candidate(settings={"elasticity": value}) for value in (0.3, 1.0, 0.1))
    methods = (
        Method("λ = 0", "efl", {"elasticity": 0.0}, (Candidate(),)),
        Method("best λ", "efl", {}, strengths),
    )
    keys = {"accuracy": "mean accuracy", "train_loss": "training loss"}
    study = _study("figure2", scale, [setting(scale, name, training=GLOBAL_ONLY) for name in datasets], methods)
    return Figure(study, keys, len(datasets))


def figure3(scale: ScaleName, datasets: Sequence[str] = ("sent140", "shakespeare")) -> Figure:
    """Few clients per round: EFL against FedAvg at several rates of participation."""
    cohorts = {"smoke": (2, 5), "small": (1, 2, 5), "full": (1, 2, 5, 10)}[scale]
    settings = [
        setting(scale, name, f"{name}, {cohort} clients per round", training={"cohort": cohort, **GLOBAL_ONLY})
        for name in datasets
        for cohort in cohorts
    ]
    methods = (Method("FedAvg", "fedavg"), Method("EFL", "efl"))
    return Figure(_study("figure3", scale, settings, methods), {"accuracy": "mean accuracy"}, len(cohorts))


FIGURES: Mapping[str, Callable[..., Figure]] = {"figure1": figure1, "figure2": figure2, "figure3": figure3}


def _study(name: str, scale: ScaleName, settings: Sequence[Setting], methods: Sequence[Method]) -> Study:
    seeds, tries, tuning_rounds = SIZES[scale]
    return Study(name, settings, methods, seeds, tries, tuning_rounds)


def write(figure: Figure, results: Results, out: Path) -> str:
    """figure.png, and the best accuracies as table.md, which is returned."""
    study = figure.study
    panels = [
        Panel(one.name, "round", label, _curves(study, results, one.name, key))
        for key, label in figure.keys.items()
        for one in study.settings
    ]
    draw_panels(panels, out / "figure.png", figure.columns)
    header = ["", *(one.name for one in study.settings)]
    rows = [
        [method.name, *(spread(results.final(one.name, method.name), "bmta_global") for one in study.settings)]
        for method in study.methods
    ]
    table = markdown(header, rows)
    (out / "table.md").write_text(table)
    return table


def _curves(study: Study, results: Results, setting_name: str, key: str) -> list[Series]:
    curves: list[Series] = []
    for number, method in enumerate(study.methods):
        runs = [run["curve"] for run in results.final(setting_name, method.name)]
        points = [[point[key] for point in run if point[key] is not None] for run in runs]
        length = min((len(values) for values in points), default=0)
        if length == 0:
            continue
        x = np.array([point["round"] + 1 for point in runs[0] if point[key] is not None][:length], dtype=np.float64)
        y = np.array([values[:length] for values in points])
        low, high = (y.min(0), y.max(0)) if len(y) > 1 else (None, None)
        curves.append(Series(method.name, x, y.mean(0), low, high, colour=COLOURS[number]))
    return curves
