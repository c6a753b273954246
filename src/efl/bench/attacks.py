"""How well rules hold against attacks: a table of accuracies, a row for each attack, a column for each rule.

Every run's outcome is a line of a file, and what stands there already is not run again: the table can be left at any
time, and extended later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from efl.api import run
from efl.config import parse
from efl.errors import UserError
from efl.runs.pool import run_pool

CLEAN, ORACLE = "nobody hostile", "oracle"
ROWS: Mapping[str, Mapping[str, Any]] = {
    CLEAN: {},
    "sign flip × 1": {"attack": "sign_flip"},
    "sign flip × 10": {"attack": "scaled"},
    "at the norm limit": {"attack": "limit"},
    "noise × 10": {"attack": "noise"},
    "labels flipped": {"attack": "label_flip"},
    "ALIE, z = 1.5": {"attack": "alie"},
    "IPM, ε = 0.5": {"attack": "ipm"},
    "IPM, ε = 10": {"attack": "ipm", "attack_strength": 10.0},
    "mimic": {"attack": "mimic"},
    "min-max": {"attack": "min_max"},
    "field, dense": {"attack": "field_dense"},
    "field of allowed size": {"attack": "field"},
    "counts × 1000, flip × 10": {"attack": "counts"},
    "sleepers, flip × 10": {"attack": "sleepers"},
    "turncoats, flip × 1": {"attack": "turncoats"},
    "adaptive": {"attack": "adaptive"},
    "adaptive, weak pull": {"attack": "adaptive", "attack_strength": 0.3},
}
COLUMNS: Mapping[str, Sequence[str]] = {  # transformations in the order of a chain
    "none": (),
    "default": ("defence",),
    "centred clipping": ("centred_clipping",),
    "median": ("coordinate_median",),
    "trimmed mean": ("trimmed_mean",),
    "geometric median": ("geometric_median",),
    "multi-Krum": ("multi_krum",),
    "mixing, trimmed mean": ("trimmed_mean", "nearest_neighbour_mixing"),
    "bucketing, geometric median": ("geometric_median", "bucketing"),
    ORACLE: (),
}
QUICK_ROWS = (CLEAN, "sign flip × 1", "at the norm limit", "labels flipped")
QUICK_COLUMNS = ("none", "default", "geometric median", ORACLE)
EVALUATIONS = 10  # in a run; the last four are averaged
LAST = 4


@dataclass(frozen=True)
class Case:
    """One run: an attack, a rule and a seed, and what all of a table have in common."""

    row: str
    column: str
    seed: int
    dataset: str = "digits"
    algorithm: str = "efl"
    hostile: float = 0.2
    rounds: int = 100
    clients: int = 50
    cohort: int = 10
    partition: str = "auto"
    model: str = "auto"

    @property
    def key(self) -> str:
        """What the case is known by in the file of outcomes; perfect exclusion is the same whatever the attack.

        The data's own network is not named: so keys are those of files from before networks could be chosen.
        """
        named = asdict(self)
        if self.model == "auto":
            del named["model"]
        if self.column == ORACLE and self.row != CLEAN:
            named["row"] = ORACLE
        return json.dumps(named, sort_keys=True, ensure_ascii=False)

    def accuracy(self, data_dir: str | None = None) -> float:
        """Run it: the mean accuracy of the last evaluations, over all clients' test data."""
        fleet = dict(ROWS[self.row]) | ({} if self.row == CLEAN else {"hostile": self.hostile})
        if self.column == ORACLE and self.row != CLEAN:
            fleet = {"attack": "absent", "hostile": self.hostile}
        federation = {"dataset": self.dataset, "clients": self.clients, "partition": self.partition}
        table = {
            "federation": federation | ({} if data_dir is None else {"data_dir": data_dir}),
            "model": {"name": self.model},
            "algorithm": {"name": self.algorithm},
            "transform": [{"name": name} for name in COLUMNS[self.column]],
            "fleet": fleet,
            "training": {
                "rounds": self.rounds,
                "cohort": self.cohort,
                "seed": self.seed,
                "evaluate_every": max(1, self.rounds // EVALUATIONS),
                "evaluate_personalised_every": "never",
            },
            "engine": {"workers": 1},
        }
        history = run(parse(table)).history
        return fmean([record["accuracy"] for record in history if "accuracy" in record][-LAST:])


def cases(rows: Sequence[str], columns: Sequence[str], seeds: Sequence[int], **common: Any) -> list[Case]:
    """All cases of a table."""
    for kind, given, known in (("attack", rows, ROWS), ("rule", columns, COLUMNS)):
        for name in given:
            if name not in known:
                raise UserError(f"unknown {kind} {name!r}; choose from: {'; '.join(known)}")
    return [Case(row, column, seed, **common) for seed in seeds for row in rows for column in columns]


def measure(wanted: Sequence[Case], outcomes: Path, data_dir: str | None = None, workers: int = 1) -> Iterator[str]:
    """Run what is not in the file of outcomes yet, so many runs side by side, and add it there; a line for each."""
    known = read(outcomes)
    missing = list({case.key: case for case in wanted if case.key not in known}.values())
    began = time.perf_counter()
    for number, (case, accuracy) in enumerate(_made(missing, data_dir, workers), 1):
        with outcomes.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"case": json.loads(case.key), "accuracy": accuracy}, ensure_ascii=False) + "\n")
        left = (time.perf_counter() - began) / number * (len(missing) - number)
        what = f"{case.row} | {case.column} | seed {case.seed}"
        yield f"{number} of {len(missing)}: {what}: {100 * accuracy:.1f} % ({left / 60:.0f} minutes left)"


def _made(missing: Sequence[Case], data_dir: str | None, workers: int) -> Iterator[tuple[Case, float]]:
    """Every case with its accuracy, as they end; each has one thread."""
    if min(workers, len(missing)) <= 1:
        yield from ((case, case.accuracy(data_dir)) for case in missing)
        return
    with run_pool(min(workers, len(missing))) as pool:
        futures = {pool.submit(case.accuracy, data_dir): case for case in missing}
        yield from ((futures[done], done.result()) for done in as_completed(futures))


def read(outcomes: Path) -> dict[str, float]:
    """The outcomes so far; a line that was cut short is none."""
    found: dict[str, float] = {}
    for line in outcomes.read_text(encoding="utf-8").splitlines() if outcomes.exists() else []:
        try:
            record = json.loads(line)
            found[json.dumps(record["case"], sort_keys=True, ensure_ascii=False)] = float(record["accuracy"])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def markdown(wanted: Sequence[Case], outcomes: Path, show: Callable[[float], str] = "{:.1f}".format) -> list[str]:
    """The table: means over the seeds, in per cent."""
    known, rows, columns = read(outcomes), _unique(case.row for case in wanted), _unique(c.column for c in wanted)
    lines = [f"| {100 * wanted[0].hostile:g} % hostile | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = []
        for column in columns:
            found = [known[c.key] for c in wanted if (c.row, c.column) == (row, column) and c.key in known]
            cells.append(show(100 * fmean(found)) if found else "–")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def _unique(names: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(names))
