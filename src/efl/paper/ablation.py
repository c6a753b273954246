"""Every ingredient of EFL and every change we make to the paper, switched off one at a time.

Two data sets, several seeds, three shares of stragglers. The row numbers are those of the table of changes in
docs/ablation.md. The figure of merit is the best mean accuracy of the global model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from efl.config import Experiment, parse
from efl.runs.comparison import Job
from efl.runs.directory import Record, RunDirectory
from efl.track.canvas import new_figure, save, style
from efl.track.figures import COLOURS
from efl.track.tables import markdown
from efl.track.text import mean_and_deviation

LOSSY = {"lost": 0.2}


@dataclass(frozen=True)
class Variant:
    """A row of the study: what is changed against our defaults."""

    label: str
    settings: Mapping[str, Any]
    algorithm: str = "efl"
    fleet: Mapping[str, Any] | None = None


FIRST = "efl:2021"  # the form in which the paper's own pieces are: ternary tensors and residuals
DENSE = {"density_up": 1.0, "density_down": 1.0}
VARIANTS = (
    Variant("EFL", {}),
    Variant("even spending", {"spending": "even"}),
    Variant("no memory", {"memory": "off"}),
    Variant("no drift correction", {"drift": "off"}),
    Variant("neither", {"memory": "off", "drift": "off"}),
    Variant("no caution", {"caution": 0.0}),
    Variant("elasticity 0", {"elasticity": 0.0}),
    Variant("elasticity 1", {"elasticity": 1.0}),
    Variant("nearest, with residual", {"rounding": "nearest"}),
    Variant("twice the bytes", {"bytes": "2/25"}),
    Variant("half the bytes", {"bytes": "1/50"}),
    Variant("uncompressed", {**DENSE, "drift": "on", "caution": 1.0}),
    Variant("uncompressed, no drift correction", DENSE),
    Variant("E/s instead of a_E/a_s", {"weighting": "C"}),
    Variant("weights p^k", {"participation": "share"}),
    Variant("20 % of replies lost", {}, fleet=LOSSY),
    Variant("first edition", {}, FIRST),
    Variant("first: (1) server adds the uncompressed aggregate", {"server_applies": "aggregate"}, FIRST),
    Variant("first: (2) clients return Δ uncompressed", {"density_up": 1.0}, FIRST),
    Variant("first: (3) explicit elastic step", {"step": "explicit"}, FIRST),
    Variant("first: (4, 5) E/s at the server, residual included", {"scale_at": "server", "weighting": "C"}, FIRST),
    Variant("first: (5) E/s at the client", {"weighting": "C"}, FIRST),
    Variant("first: (6) weights p^k", {"participation": "share"}, FIRST),
    Variant("first: (6) p^k/π_k without answer rates", {"answer_rates": False}, FIRST),
    Variant("first: (6) p^k/π_k self-normalised", {"participation": "self-normalised"}, FIRST),
    Variant("first: (7) no cap", {"weight_cap": float("inf")}, FIRST),
    Variant("first: (8) dense field", {"field": "dense"}, FIRST),
    Variant("first: (9) ST for each tensor", {"scope": "tensor"}, FIRST),
    Variant("first: (10) 20 % of replies lost, echo", {}, FIRST, LOSSY),
    Variant("first: (10) 20 % of replies lost, no echo", {"echo": False}, FIRST, LOSSY),
    Variant("first: fisher empirical", {"fisher": "empirical"}, FIRST),
    Variant("first: fisher true", {"fisher": "true"}, FIRST),
    Variant("first: scheme A", {"weighting": "A"}, FIRST),
    Variant("first: scheme B", {"weighting": "B"}, FIRST),
    Variant("all of the paper: efl:paper", {}, "efl:paper"),
    Variant("FedAvg", {}, "fedavg"),
    Variant("FedAvg, incomplete used", {"incomplete": "use"}, "fedavg"),
    Variant("SCAFFOLD, incomplete used", {"incomplete": "use"}, "scaffold"),
    Variant("FedProx", {}, "fedprox"),
)

_SYNTHETIC: Mapping[str, Mapping[str, Any]] = {
    "federation": {"dataset": "synthetic:1,1", "clients": 30},
    "training": {"rounds": 200, "batch_size": 10},
    "algorithm": {"density_up": 0.04, "density_down": 0.04},
}
_DIGITS: Mapping[str, Mapping[str, Any]] = {
    "federation": {"dataset": "digits", "partition": "classes:2"},
    "training": {"rounds": 100},
    "algorithm": {},
}
DATASETS = {"synthetic": _SYNTHETIC, "digits": _DIGITS}


@dataclass(frozen=True)
class Scale:
    """How large the study is."""

    seeds: int
    stragglers: tuple[float, ...]
    variants: Sequence[Variant] = VARIANTS
    rounds: int | None = None


SCALES = {
    "smoke": Scale(1, (0.9,), VARIANTS[:6], rounds=10),
    "small": Scale(1, (0.5, 0.9)),
    "full": Scale(3, (0.0, 0.5, 0.9)),
}


def plan(scale: Scale, out: Path) -> list[Job]:
    """All runs of the study; their label is dataset|stragglers|variant."""
    jobs: list[Job] = []
    for dataset, table in DATASETS.items():
        for stragglers in scale.stragglers:
            for number, variant in enumerate(scale.variants):
                for seed in range(scale.seeds):
                    experiment = _experiment(table, variant, stragglers, seed, scale.rounds)
                    directory = out / "runs" / f"{dataset}-{stragglers:g}-{number:02d}-seed{seed}"
                    jobs.append(Job(f"{dataset}|{stragglers:g}|{variant.label}", experiment, directory))
    return jobs


def _experiment(
    table: Mapping[str, Mapping[str, Any]], variant: Variant, stragglers: float, seed: int, rounds: int | None
) -> Experiment:
    training = {**table["training"], "seed": seed} | ({"rounds": rounds} if rounds else {})
    training["evaluate_personalised_every"] = training["rounds"]  # at the end only: the study is about the global model
    is_ternary = variant.algorithm.startswith("efl:")
    settings = {**(table["algorithm"] if is_ternary else {}), **variant.settings}
    return parse(
        {
            "federation": table["federation"],
            "training": training,
            "algorithm": {"name": variant.algorithm, **settings},
            "fleet": {"stragglers": stragglers, "inactive": 0.0, **(variant.fleet or {})},
        }
    )


def write(jobs: Sequence[Job], out: Path) -> str:
    """table.md, results.json and figure.png from the finished runs; returns the table."""
    results: dict[str, list[Record]] = {}
    for job in jobs:
        summary = RunDirectory.open(job.directory).read_summary()
        if summary is not None:
            results.setdefault(job.label, []).append(summary)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    columns = list(dict.fromkeys(tuple(label.split("|")[:2]) for label in results))
    variants = list(dict.fromkeys(label.split("|", 2)[2] for label in results))
    header = ["", *(f"{dataset}, {float(share):.0%} stragglers" for dataset, share in columns)]
    rows = [[name, *(_cell(results.get("|".join((*column, name)), [])) for column in columns)] for name in variants]
    table = markdown(header, rows)
    (out / "table.md").write_text(table)
    _draw(results, columns, variants, out / "figure.png")
    return table


def _cell(runs: Sequence[Record]) -> str:
    if not runs:
        return "–"
    lost = sum(run["diverged"] for run in runs)
    values = [run["bmta_global"] for run in runs if run["bmta_global"] is not None and not run["diverged"]]
    if not values:
        return "diverges"
    return mean_and_deviation(values) + (f" ({lost} of {len(runs)} diverge)" if lost else "")


def _draw(
    results: Mapping[str, Sequence[Record]], columns: Sequence[tuple[str, ...]], variants: Sequence[str], path: Path
) -> None:
    """A dot for each variant and column, with a bar over the seeds; a cross where runs diverged."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in columns))
    figure = new_figure(6.4 * len(datasets), 1.6 + 0.27 * len(variants))
    axes = figure.subplots(1, len(datasets), sharey=True, squeeze=False)
    for axis, dataset in zip(axes.flat, datasets, strict=True):
        shares = [share for name, share in columns if name == dataset]
        for shift, share in enumerate(shares):
            colour = COLOURS[shift]
            for row, variant in enumerate(variants):
                runs = results.get(f"{dataset}|{share}|{variant}", [])
                values = [100 * run["bmta_global"] for run in runs if run["bmta_global"] and not run["diverged"]]
                height = row + 0.22 * (shift - (len(shares) - 1) / 2)
                if values:
                    axis.plot([min(values), max(values)], [height] * 2, color=colour, lw=1.2, alpha=0.6)
                    axis.plot(mean(values), height, "o", color=colour, ms=4)
                if any(run["diverged"] for run in runs):
                    axis.plot(0.01, height, "x", color=colour, ms=5, transform=axis.get_yaxis_transform())
            axis.plot([], [], "o", color=colour, label=f"{float(share):.0%} stragglers")
        style(axis, dataset, "best mean accuracy, % (× diverged)")
        axis.grid(visible=False, axis="y")
    axes[0][0].set_yticks(range(len(variants)), variants)
    axes[0][0].invert_yaxis()
    axes[0][0].legend(loc="lower left", frameon=False, fontsize=8)
    save(figure, path)
