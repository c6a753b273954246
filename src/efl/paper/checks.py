"""What the studies of the theorems share: checks that pass or fail with their figures, and the files they leave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.axes import Axes

from efl.track.canvas import style
from efl.track.tables import markdown

Cell = str | int | float


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    passed: bool
    figures: str

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'}  {self.name}: {self.figures}"


@dataclass(frozen=True)
class Outcome:
    """A study's checks, and its table."""

    checks: Sequence[Check]
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def passed(self) -> bool:
        """Whether all checks hold."""
        return all(check.passed for check in self.checks)

    def write(self, out: Path) -> None:
        """table.md with the table and the checks, results.json with the same for machines."""
        table = markdown(self.header, [[_text(cell) for cell in row] for row in self.rows])
        lines = "".join(f"- {check}\n" for check in self.checks)
        (out / "table.md").write_text(f"{table}\n{lines}")
        rows = [dict(zip(self.header, row, strict=True)) for row in self.rows]
        record = {"passed": self.passed, "checks": [asdict(check) for check in self.checks], "table": rows}
        (out / "results.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def panel(axis: Axes, title: str, x_label: str, y_label: str) -> None:
    """The look of a double logarithmic panel."""
    style(axis, title, x_label, y_label, xscale="log", yscale="log")


def _text(cell: Cell) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if cell >= 1000 else f"{cell:.3g}"
