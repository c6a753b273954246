"""Results of a study: a line of results.jsonl for every finished run, and the text of tables made from them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from efl.config import Experiment, parse
from efl.errors import UserError
from efl.reading import parse_json, read_text, readable
from efl.runs.directory import Record, RunDirectory
from efl.runs.records import with_aliases
from efl.storage import write_atomically
from efl.track.text import mean_and_deviation

KEPT = ("bmta_global", "bmta_local", "final_mean_accuracy", "worst_decile_accuracy", "bytes_up", "bytes_down")
CURVE = ("round", "accuracy", "personalised_accuracy", "train_loss", "bytes_up", "bytes_down", "sent_up", "sent_down")


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
        text = ""
        if os.path.lexists(path):
            with readable(path):
                text = read_text(path)
        if text and not text.endswith("\n"):  # killed while it wrote a line: that run is made again
            text = text[: text.rfind("\n") + 1]
            write_atomically(path, text.encode())
        for number, line in enumerate(text.splitlines(), 1):
            try:
                record = parse_json(line.replace(" clients a round", " clients per round"))  # the first edition's words
                record["curve"] = [with_aliases(point) for point in record["curve"]]
                self.lines[Cell(**record["cell"])] = record
            except (ValueError, KeyError, TypeError, AttributeError):
                raise UserError(f"{path}:{number}: not a result; delete the line to make that run again") from None

    def add(self, cell: Cell, experiment: Experiment, directory: RunDirectory, summary: Record) -> None:
        """Keep a run's result for good."""
        history = directory.history()
        up, down = ([line[f"bytes_{way}"] for line in history] for way in ("up", "down"))
        totals = zip(history, accumulate(up), accumulate(down), strict=True)
        lines = [line | {"sent_up": sent, "sent_down": received} for line, sent, received in totals]
        curve = [{key: line.get(key) for key in CURVE} for line in lines]
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
        """The test runs of a method on a setting, one for each seed, as they were run last."""
        by_seed = {
            cell.seed: record
            for cell, record in self.lines.items()
            if (cell.setting, cell.method, cell.tuning) == (setting, method, False)
        }
        return [by_seed[seed] for seed in sorted(by_seed)]

    def has(self, cell: Cell, experiment: Experiment) -> bool:
        """Whether this run was made, with these settings."""
        if cell not in self.lines:
            return False
        try:
            return _but_for_evaluation(parse(self.lines[cell]["experiment"])) == _but_for_evaluation(experiment)
        except UserError:
            return False


def _but_for_evaluation(experiment: Experiment) -> Experiment:
    """How often models are evaluated changes nothing in a run."""
    training = experiment.training.model_copy(update={"evaluate_every": 1, "evaluate_personalised_every": 1})
    return experiment.model_copy(update={"training": training})


def values_of(records: Sequence[Record], key: str) -> dict[int, float]:
    """A figure of some runs, by seed; what diverged, or has no such figure, is left out."""
    found = {record["cell"]["seed"]: record["summary"] for record in records}
    return {seed: one[key] for seed, one in found.items() if one[key] is not None and not one["diverged"]}


def spread(records: Sequence[Record], key: str) -> str:
    """Mean ± standard deviation over seeds, in percent; a dash where there is nothing."""
    values = [record["summary"][key] for record in records if record["summary"][key] is not None]
    text = mean_and_deviation(values, digits=2)
    if not values:
        return text
    lost = sum(bool(record["summary"]["diverged"]) for record in records)
    return text + (f" ({lost} diverged)" if lost else "")


def latex(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    r"""A table for a paper, with booktabs' rules.

    >>> latex(["", "mnist"], [["EFL", "**99.1 ± 0.1**"]], "Accuracy").splitlines()[6]
    'EFL & \\textbf{99.1 $\\pm$ 0.1} \\\\'
    """
    plain = {"±": r"$\pm$", "–": "--", "%": r"\%", "λ": r"$\lambda$", "η": r"$\eta$", "_": r"\_", "…": r"\dots{}"}

    def tex(text: str) -> str:
        for sign, command in plain.items():
            text = text.replace(sign, command)
        return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)

    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(tex, cells)) + r" \\"

    body = [line(header), r"\midrule", *(line(row) for row in rows)]
    columns = "l" + "r" * (len(header) - 1)
    start = [r"\begin{table}", rf"\caption{{{tex(caption)}}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    return "\n".join([*start, *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"])
