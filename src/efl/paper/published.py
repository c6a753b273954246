"""Two tables that others published, in their settings, with their figures beside ours.

``fedsmu`` is CIFAR-100 as in the comparison of FedSMU (Lu et al. 2025, and its code): LeNet, 50,000 images over clients
by Dirichlet(0.25), ten clients per round, 100 steps of batch 50 (five epochs of the usual of 50 clients), weight decay
0.001, each method tuned; 6,000 rounds. ``pfllib`` is the row of PFLlib (Zhang et al. 2025) for CIFAR-100 by
Dirichlet(0.1): 20 clients, all in every round, an epoch of batch 10 at η = 0.005, a quarter of everybody's images for
testing, 2,000 rounds; personalised models.

What differs: a client's steps here are the same for all, not epochs of its own data, and accuracy is the mean over
clients on test data like their own, where FedSMU's is that of one test set. Smaller scales have fewer rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from efl.algorithms.search import Choice
from efl.paper.data import REGULAR, ScaleName
from efl.paper.figures import Figure, Shown, draw
from efl.paper.results import Results, latex, spread
from efl.paper.study import Method, Setting, Study
from efl.track.tables import markdown
from efl.track.text import bytes_text
from efl.tune.search import Effort
from efl.tune.space import Space

TableName = Literal["fedsmu", "pfllib"]
SIZES: Mapping[ScaleName, tuple[int, Effort]] = {
    "smoke": (1, Effort(2, 2, 1, 0)),
    "small": (1, Effort(3, 5, 1, 0)),
    "medium": (2, Effort(3, 10, 1, 0)),
    "full": (3, Effort(6, 200, 2, 1)),
}
ROUNDS: Mapping[ScaleName, Mapping[TableName, int]] = {
    "smoke": {"fedsmu": 4, "pfllib": 4},
    "small": {"fedsmu": 10, "pfllib": 10},
    "medium": {"fedsmu": 60, "pfllib": 60},
    "full": {"fedsmu": 6000, "pfllib": 2000},
}
RATES: Space = {"training.learning_rate": Choice((0.1, 0.03, 0.01))}


@dataclass(frozen=True)
class Published:
    """A study, and what others say came of it.

    Attributes:
        study: Its settings and methods.
        key: Which of our figures theirs is.
        what: What that is called.
        said: Theirs in percent, by setting and method.
    """

    study: Study
    key: Literal["bmta_global", "bmta_local"]
    what: str
    said: Mapping[str, Mapping[str, float]]


def table(name: TableName, scale: ScaleName) -> Published:
    """One of the tables at a scale."""
    return fedsmu(scale) if name == "fedsmu" else pfllib(scale)


def fedsmu(scale: ScaleName) -> Published:
    """50 and 200 clients, of whom ten train."""
    training = {"local_steps": 100, "batch_size": 50, "evaluate_personalised_every": "never"}
    training["optimiser"] = {"name": "sgd", "weight_decay": 0.001}
    settings = [
        _setting(scale, "fedsmu", f"10 of {clients} clients", clients, "dirichlet:0.25", "lenet", 1 / 6, training)
        for clients in (50, 200)
    ]
    methods = (
        Method("FedAvg", "fedavg", space=RATES),
        Method("SCAFFOLD", "scaffold", space=RATES),
        Method("SCALLION", "scallion", space=RATES),
        Method("FedSMU", "fedsmu", {"step": 1.8}, {**RATES, "algorithm.step": Choice((1.8, 0.6, 0.18))}),
        Method("EFL", "efl", space=RATES),
    )
    said = (
        {"FedAvg": 46.62, "SCAFFOLD": 52.52, "SCALLION": 48.07, "FedSMU": 52.39},
        {"FedAvg": 39.44, "SCAFFOLD": 37.31, "SCALLION": 35.49, "FedSMU": 50.22},
    )
    named = {one.name: figures for one, figures in zip(settings, said, strict=True)}
    return Published(_study("fedsmu", scale, settings, methods), "bmta_global", "global model", named)


def pfllib(scale: ScaleName) -> Published:
    """20 of 20 clients, personalised models; FedAvg's and FedProx' there are the global one's."""
    training = {"local_steps": 225, "batch_size": 10, "learning_rate": 0.005, "evaluate_personalised_every": 5}
    one = _setting(scale, "pfllib", "20 of 20 clients", 20, "dirichlet:0.1", "cnn_unpadded", 0.25, training)
    methods = (
        Method("APFL", "apfl", gradients=2, space={}),
        Method("Ditto", "ditto", gradients=2, space={}),
        Method("EFL", "efl", space={}),
    )
    said = {one.name: {"APFL": 46.74, "Ditto": 52.87}}
    return Published(_study("pfllib", scale, [one], methods), "bmta_local", "personalised models", said)


def _setting(
    scale: ScaleName,
    table: TableName,
    name: str,
    clients: int,
    partition: str,
    network: str,
    test_fraction: float,
    training: Mapping[str, Any],
) -> Setting:
    """At ``smoke``, with a data set that is at hand."""
    rounds, cohort = ROUNDS[scale][table], min(clients, 10 if table == "fedsmu" else 20)
    data: dict[str, Any] = {"dataset": "cifar100", "test_fraction": test_fraction}
    if scale == "smoke":
        training = {**training, "local_steps": 5, "batch_size": 10}
        name, data, clients, network = f"for {name}", {"dataset": "digits"}, max(4, clients // 10), "mlp"
        cohort = min(clients, cohort // 2)
    tables = {
        "federation": {**data, "clients": clients, "partition": partition},
        "model": {"name": network},
        "training": {"rounds": rounds, "cohort": cohort, "evaluate_every": max(1, rounds // 40), **training},
        "fleet": REGULAR,
    }
    return Setting(name, tables)


def _study(name: str, scale: ScaleName, settings: Sequence[Setting], methods: Sequence[Method]) -> Study:
    seeds, effort = SIZES[scale]
    return Study(f"published-{name}", settings, methods, seeds, effort)


def write(published: Published, results: Results, out: Path) -> str:
    """figure.png with the curves, table.md and table.tex; returns the former table."""
    study = published.study
    over = "accuracy" if published.key == "bmta_global" else "personalised_accuracy"
    draw(Figure(study, [Shown(over, f"mean accuracy, {published.what}")], len(study.settings)), results, out)
    header = [""]
    for one in study.settings:
        header += [f"{one.name}: {published.what}", "published", "η", "bytes"]
    rows = [[method.name, *_cells(published, results, method.name)] for method in study.methods]
    said = markdown(header, rows)
    (out / "table.md").write_text(said)
    rounds = study.settings[0].tables["training"]["rounds"]
    caption = f"Best accuracy in {rounds:,} rounds in percent, what others published, and what it costs"
    (out / "table.tex").write_text(latex(header, rows, caption) + "\n")
    return said


def _cells(published: Published, results: Results, method: str) -> list[str]:
    """For every setting: ours, theirs, the rate that was chosen, bytes both ways per round."""
    cells: list[str] = []
    for one in published.study.settings:
        runs, theirs = results.final(one.name, method), published.said[one.name].get(method)
        summaries = [run["summary"] for run in runs]
        sent = [(found["bytes_up"] + found["bytes_down"]) / found["rounds"] for found in summaries]
        rates = dict.fromkeys(f"{run['experiment']['training']['learning_rate']:g}" for run in runs)
        cells += [spread(runs, published.key), "–" if theirs is None else f"{theirs:.2f}"]
        cells += [", ".join(rates) or "–", f"{bytes_text(fmean(sent))} a round" if sent else "–"]
    return cells
