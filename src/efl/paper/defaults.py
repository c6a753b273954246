"""What it costs not to tune: each method with its defaults, against the best of some other settings.

Learning rates a third of and three times the default are tried for all, and λ a tenth of and ten times its default for
EFL. The best is chosen in hindsight, on the test data themselves: no tuner could do better, so the loss is at most what
the table says, up to the chance of the seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from efl.algorithms import create
from efl.config import parse
from efl.paper.choose import FIRST_SEED, METHODS, Case, tables_of
from efl.runs.comparison import Job
from efl.runs.directory import RunDirectory
from efl.track.tables import markdown

DEFAULT = "default"
RATES = {DEFAULT: 1.0, "η/3": 1 / 3, "3η": 3.0}
ELASTICITIES = {"λ/10": 0.1, "10λ": 10.0}


def plan(cases: Iterable[Case], seeds: int, out: Path, rounds: int | None = None) -> list[Job]:
    """All runs, with half of the clients stragglers; their label is case|method|setting."""
    return [
        Job(f"{case.name}|{method}|{label}", parse(tables), out / "runs" / f"{number}-{method}-{at}-{seed}")
        for number, case in enumerate(cases)
        for method in case.methods
        if method in METHODS
        for at, (label, rate, changed) in enumerate(_candidates(method, case))
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for tables in [_tables(case, method, rate, changed, seed, rounds)]
    ]


def _candidates(method: str, case: Case) -> list[tuple[str, float, Mapping[str, Any]]]:
    """A label, a factor of the learning rate, and settings of the algorithm."""
    found: list[tuple[str, float, Mapping[str, Any]]] = [(label, rate, {}) for label, rate in RATES.items()]
    name, settings = case.methods[method]
    if hasattr(algorithm := create(name, settings), "elasticity"):
        found += [(label, 1.0, {"elasticity": f * algorithm.elasticity}) for label, f in ELASTICITIES.items()]
    return found


def _tables(
    case: Case, method: str, rate: float, changed: Mapping[str, Any], seed: int, rounds: int | None
) -> dict[str, Any]:
    name, settings = case.methods[method]
    tables = tables_of(case, 0.5, name, {**settings, **changed}, seed, rounds)
    if rate != 1:
        tables["training"]["learning_rate"] = rate * parse(tables).training.learning_rate
    return tables


def write(jobs: Sequence[Job], out: Path) -> str:
    """table.md from the finished runs; returns it."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for job in jobs:
        summary = RunDirectory.open(job.directory).read_summary()
        case, method, label = job.label.split("|")
        if summary is not None:
            best = 0.0 if summary["diverged"] else float(summary["bmta_global"])
            found.setdefault((case, method), {}).setdefault(label, []).append(best)
    rows = [[*key, *_row({label: fmean(values) for label, values in labels.items()})] for key, labels in found.items()]
    table = markdown(["", "method", "default", "best", "with", "loss"], rows)
    (out / "table.md").write_text(table)
    return table


def _row(means: Mapping[str, float]) -> list[str]:
    best = max(means, key=lambda label: means[label])
    default = means.get(DEFAULT, 0.0)
    return [f"{100 * default:.1f}", f"{100 * means[best]:.1f}", best, f"{100 * (means[best] - default):.1f}"]
