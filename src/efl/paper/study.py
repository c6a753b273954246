"""What Table 3 and Figures 1 to 3 share: methods on settings, tuned alike, built up piece by piece.

Every method has the same number of tuning runs on each setting: candidates (a learning rate, or a setting of its own)
are played on a part of the training data held out for it, and the best is played on the test data with several seeds.
Every finished run is a line in results.jsonl. Asked again, a study takes up what is there, so it can be stopped at any
time and made larger later; what was played with other settings is played again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from efl.algorithms import create
from efl.config import Experiment, parse
from efl.errors import UserError
from efl.runs.comparison import Job
from efl.runs.directory import Record, RunDirectory

Tables = Mapping[str, Mapping[str, Any]]
Play = Callable[[list[Job], Callable[[Job, Record], None]], object]
TUNING_SEED = 1000  # none of the seeds that are reported
KEPT = ("bmta_global", "bmta_local", "final_mean_accuracy", "worst_decile_accuracy", "bytes_up", "bytes_down")
CURVE = ("round", "accuracy", "own_accuracy", "train_loss", "bytes_up", "bytes_down")


@dataclass(frozen=True)
class Candidate:
    """Something to try: a multiple of the setting's learning rate, and settings of the algorithm."""

    rate: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)


RATES = (Candidate(1.0), Candidate(0.3), Candidate(3.0))


@dataclass(frozen=True)
class Method:
    """A row of a table, or a curve."""

    name: str
    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    candidates: Sequence[Candidate] = RATES

    @property
    def personal(self) -> bool:
        """Whether its clients have models of their own, by which it is judged."""
        return create(self.algorithm).personalised

    @property
    def merit(self) -> str:
        """What is greatest for the best candidate."""
        return "bmta_local" if self.personal else "bmta_global"


@dataclass(frozen=True)
class Setting:
    """A column of a table, or a panel: data, network, training and fleet, as sections of an experiment."""

    name: str
    tables: Tables


@dataclass(frozen=True)
class Study:
    """Methods × settings × seeds; ``tries`` candidates are played for ``tuning_rounds`` rounds.

    Tuning never takes more than half the rounds of a test run.
    """

    name: str
    settings: Sequence[Setting]
    methods: Sequence[Method]
    seeds: int = 1
    tries: int = 3
    tuning_rounds: int = 30


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    setting: str
    method: str
    candidate: int
    tuning: bool
    seed: int

    @property
    def label(self) -> str:
        """What the progress display says."""
        stage = f"tuning {self.candidate + 1}" if self.tuning else "test"
        return f"{self.setting} | {self.method} | {stage}"


class Results:
    """results.jsonl: a line for every finished run, with its summary and its curve."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Cell, Record] = {}
        for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
            try:
                record = json.loads(line)
                self.lines[Cell(**record["cell"])] = record
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path}:{number}: not a result; delete the line to play that run again") from None

    def add(self, cell: Cell, experiment: Experiment, directory: RunDirectory, summary: Record) -> None:
        """Keep a run's result for good."""
        curve = [{key: line.get(key) for key in CURVE} for line in directory.history()]
        record = {
            "cell": vars(cell),
            "experiment": experiment.model_dump(exclude_none=True),
            "summary": {key: summary[key] for key in (*KEPT, "rounds", "seconds", "diverged")},
            "curve": [point for point in curve if point["accuracy"] is not None],
        }
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.lines[cell] = record

    def final(self, setting: str, method: str) -> list[Record]:
        """The test runs of a method on a setting, one a seed: the last, if tuning came to choose another candidate."""
        by_seed = {
            cell.seed: record
            for cell, record in self.lines.items()
            if (cell.setting, cell.method, cell.tuning) == (setting, method, False)
        }
        return [by_seed[seed] for seed in sorted(by_seed)]

    def has(self, cell: Cell, experiment: Experiment) -> bool:
        """Whether this run was played, with these settings."""
        if cell not in self.lines:
            return False
        try:
            return _without_looks(parse(self.lines[cell]["experiment"])) == _without_looks(experiment)
        except UserError:
            return False

    def best(self, setting: str, method: Method) -> int:
        """The candidate with the greatest merit on held-out data; the first, if none was tried."""
        tried = {
            cell.candidate: _merit(record, method.merit)
            for cell, record in self.lines.items()
            if (cell.setting, cell.method, cell.tuning) == (setting, method.name, True)
        }
        return max(sorted(tried), key=lambda number: tried[number]) if tried else 0


def _merit(record: Record, key: str) -> float:
    value = record["summary"][key]
    return -1.0 if value is None or record["summary"]["diverged"] else float(value)


def _without_looks(experiment: Experiment) -> Experiment:
    """How often models are looked at changes nothing in a run."""
    training = experiment.training.model_copy(update={"evaluate_every": 1, "evaluate_own_every": 1})
    return experiment.model_copy(update={"training": training})


def run(study: Study, out: Path, play: Play) -> Results:
    """Tune, then test, playing only what is not there yet."""
    out.mkdir(parents=True, exist_ok=True)
    results = Results(out / "results.jsonl")
    methods = {method.name: method for method in study.methods}
    tuning = [
        Cell(setting.name, method.name, number, True, TUNING_SEED)
        for setting in study.settings
        for method in study.methods
        for number in range(min(study.tries, len(method.candidates)))
        if min(study.tries, len(method.candidates)) > 1  # else there is nothing to choose
    ]
    _play(study, tuning, results, out, play)
    tests = [
        Cell(setting.name, method, results.best(setting.name, methods[method]), False, seed)
        for seed in range(study.seeds)
        for setting in study.settings
        for method in methods
    ]
    _play(study, tests, results, out, play)
    return results


def _play(study: Study, cells: Sequence[Cell], results: Results, out: Path, play: Play) -> None:
    jobs: dict[Path, tuple[Cell, Job]] = {}
    for cell in cells:
        experiment = _experiment(study, cell)
        if results.has(cell, experiment):
            continue
        name = "-".join(str(value) for value in vars(cell).values())
        directory = out / "runs" / "".join(sign for sign in name if sign.isalnum() or sign in "-.")
        jobs[directory] = cell, Job(cell.label, experiment, directory)

    def done(job: Job, summary: Record) -> None:
        results.add(jobs[job.directory][0], job.experiment, RunDirectory.open(job.directory), summary)
        shutil.rmtree(job.directory)

    if jobs:
        play([job for _, job in jobs.values()], done)


def _experiment(study: Study, cell: Cell) -> Experiment:
    setting = next(setting for setting in study.settings if setting.name == cell.setting)
    method = next(method for method in study.methods if method.name == cell.method)
    candidate = method.candidates[cell.candidate]
    tables = {name: dict(table) for name, table in setting.tables.items()}
    training = tables.setdefault("training", {})
    training |= {"seed": cell.seed, "learning_rate": training["learning_rate"] * candidate.rate}
    if cell.tuning:
        rounds = min(study.tuning_rounds, -(-training["rounds"] // 2))
        training |= {"rounds": rounds, "evaluate_own_every": rounds if method.personal else "never"}
        tables["federation"]["evaluate_on"] = "validation"
    tables["algorithm"] = {"name": method.algorithm, **method.settings, **candidate.settings}
    return parse(tables)


def spread(records: Sequence[Record], key: str) -> str:
    """Mean ± standard deviation over seeds, in percent; a dash where there is nothing."""
    values = [100 * record["summary"][key] for record in records if record["summary"][key] is not None]
    if not values:
        return "–"
    text = f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
    lost = sum(bool(record["summary"]["diverged"]) for record in records)
    return text + (f" ({lost} diverged)" if lost else "")


def latex(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    r"""A table for a paper, with booktabs' rules.

    >>> latex(["", "mnist"], [["EFL", "99.1 ± 0.1"]], "Accuracy").splitlines()[6]
    'EFL & 99.1 $\\pm$ 0.1 \\\\'
    """
    plain = {"±": r"$\pm$", "–": "--", "%": r"\%", "λ": r"$\lambda$", "η": r"$\eta$", "_": r"\_"}

    def line(cells: Sequence[str]) -> str:
        text = " & ".join(cells)
        for sign, command in plain.items():
            text = text.replace(sign, command)
        return text + r" \\"

    body = [line(header), r"\midrule", *(line(row) for row in rows)]
    columns = "l" + "r" * (len(header) - 1)
    start = [r"\begin{table}", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    return "\n".join([*start, *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"])
