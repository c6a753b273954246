"""Which algorithm to choose: EFL against FedAvg and SCAFFOLD at their best, with every byte counted.

Each case is a federation as users have them: silos, a few dozen clients, hundreds of which few are sampled; labels and
sizes unlike; no, half or nearly all of the sampled clients stragglers. FedAvg drops incomplete work, as its paper does;
SCAFFOLD uses it. Seeds start at `FIRST_SEED`: none of them was used to choose a setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from efl.config import parse
from efl.errors import UserError
from efl.runs.comparison import Job
from efl.runs.directory import Record, RunDirectory
from efl.track.tables import markdown
from efl.track.text import bytes_text

FIRST_SEED = 700
EVALUATIONS = 20
LAST = 3  # evaluations whose mean is the second figure
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "EFL": ("efl", {}),
    "FedAvg": ("fedavg", {}),
    "SCAFFOLD": ("scaffold", {"incomplete": "use"}),
}
SILOS = {**METHODS, "EFL": ("efl", {"bytes": "1/50"})}  # who takes part in every round need not catch up
TWO = {name: method for name, method in METHODS.items() if name != "SCAFFOLD"}
EDITIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {**METHODS, "EFL 2021": ("efl:2021", {})}
FINE = 0.25  # of the usual entry: a lattice that loses next to nothing
CEILINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "EFL, fine up": ("efl", {"step_up": FINE}),
    "EFL, fine down": ("efl", {"step_down": FINE}),
    "EFL, fine both ways": ("efl", {"step_up": FINE, "step_down": FINE}),
}


@dataclass(frozen=True)
class Case:
    """A federation and how it is trained."""

    name: str
    federation: Mapping[str, Any]
    stragglers: tuple[float, ...] = (0.0, 0.5, 0.9)
    training: Mapping[str, Any] = field(default_factory=dict)
    model: str = "auto"
    methods: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=lambda: METHODS)
    personalised: bool = False  # whether personalised models are evaluated, at the end

    def with_ceilings(self) -> Case:
        """What EFL would reach if bytes did not matter, in each direction, beside the others."""
        return replace(self, methods={**self.methods, **CEILINGS})


# η is the best of 1 and 2 for FedAvg after 60 rounds, without decay.
SHAKESPEARE = {"rounds": 240, "local_steps": 6, "batch_size": 4, "learning_rate": 2.0, "decay": 0.0}
CASES = (
    Case("digits, 2 classes each", {"dataset": "digits", "partition": "classes:2"}, methods=EDITIONS),
    Case("digits, dirichlet 0.2", {"dataset": "digits", "partition": "dirichlet:0.2"}),
    Case("digits, 10 silos", {"dataset": "digits", "partition": "classes:2", "clients": 10}, (0.5,), methods=SILOS),
    Case("synthetic(1,1)", {"dataset": "synthetic:1,1"}),
    Case("mnist mlp, 100", {"dataset": "mnist", "clients": 100, "partition": "classes:2"}, (0.5,), {}, "mlp200"),
    Case("mnist mlp, 500", {"dataset": "mnist", "clients": 500, "partition": "classes:2"}, (0.5,), {}, "mlp"),
    Case(
        "mnist cnn",
        {"dataset": "mnist", "clients": 100, "partition": "classes:2"},
        (0.0,),
        {"rounds": 150},
        "cnn",
        TWO,
        personalised=True,
    ),
    Case(
        "cifar100 cnn",
        {"dataset": "cifar100", "clients": 100, "partition": "classes:2"},
        (0.0,),
        {"rounds": 40, "local_steps": 40, "learning_rate": 0.05},
        "cnn",
        TWO,
        personalised=True,
    ),
    Case("shakespeare", {"dataset": "shakespeare", "clients": 300}, (0.0, 0.5), SHAKESPEARE, "char_lstm", TWO),
)
AT_HAND = ("digits", "synthetic")  # data sets that come with the package


def chosen_cases(names: str | None) -> list[Case]:
    """The cases whose data set is among ``names``, separated by commas; None for those that need no files."""
    wanted = AT_HAND if names is None else tuple(name.strip() for name in names.split(","))
    cases = [case for case in CASES if case.federation["dataset"].partition(":")[0] in wanted]
    if not cases:
        raise UserError(f"no case has a data set among {names!r}")
    return cases


def plan(cases: Iterable[Case], seeds: int, out: Path, rounds: int | None = None) -> list[Job]:
    """All runs; their label is case|stragglers|method."""
    return [
        Job(f"{case.name}|{stragglers:g}|{label}", experiment, out / "runs" / f"{number}-{stragglers:g}-{label}-{seed}")
        for number, case in enumerate(cases)
        for stragglers in case.stragglers
        for label, (name, settings) in case.methods.items()
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for experiment in [parse(tables_of(case, stragglers, name, settings, seed, rounds))]
    ]


def tables_of(
    case: Case, stragglers: float, name: str, settings: Mapping[str, Any], seed: int, rounds: int | None
) -> dict[str, Any]:
    """The experiment of one run, as tables of its file."""
    training = {"rounds": 100, **case.training, "seed": seed} | ({} if rounds is None else {"rounds": rounds})
    training["evaluate_every"] = max(1, training["rounds"] // EVALUATIONS)
    training["evaluate_personalised_every"] = training["rounds"] if case.personalised else "never"
    return {
        "federation": case.federation,
        "training": training,
        "model": {"name": case.model},
        "algorithm": {"name": name, **settings},
        "fleet": {"stragglers": stragglers, "inactive": 0.1},
    }


def write(jobs: Sequence[Job], out: Path) -> str:
    """table.md from the finished runs; returns it."""
    results: dict[str, list[tuple[Record, list[float]]]] = {}
    for job in jobs:
        directory = RunDirectory.open(job.directory)
        summary = directory.read_summary()
        if summary is not None:
            accuracies = [record["accuracy"] for record in directory.history() if "accuracy" in record]
            results.setdefault(job.label, []).append((summary, accuracies))
    methods = list(dict.fromkeys(label.split("|")[2] for label in results))
    rows: list[list[str]] = []
    for case, stragglers in dict.fromkeys(tuple(label.split("|")[:2]) for label in results):
        found = [results.get(f"{case}|{stragglers}|{method}", []) for method in methods]
        ours, fedavg = found[0], found[methods.index("FedAvg")]
        rows.append([case, f"{float(stragglers):.0%}", *map(_cell, found), _ratio(ours, fedavg), _below(ours)])
    header = ["best / last three evaluations, bytes", "stragglers", *methods]
    header += ["FedAvg's bytes over EFL's", "EFL's worst seed below the mean, last three"]
    table = markdown(header, rows)
    (out / "table.md").write_text(table)
    return table


def _cell(runs: Sequence[tuple[Record, Sequence[float]]]) -> str:
    if not runs:
        return "–"
    best, last = fmean(max(found) for _, found in runs), fmean(_last(runs))
    personalised = [summary["bmta_local"] for summary, _ in runs if summary.get("bmta_local") is not None]
    own = f", personalised {100 * fmean(personalised):.1f}" if personalised else ""
    return f"{100 * best:.1f} / {100 * last:.1f}{own}, {bytes_text(_bytes(runs))}"


def _last(runs: Sequence[tuple[Record, Sequence[float]]]) -> list[float]:
    """The mean of the last evaluations of each run."""
    return [fmean(found[-LAST:]) for _, found in runs]


def _below(runs: Sequence[tuple[Record, Sequence[float]]]) -> str:
    """How far the worst run is below the mean, in points."""
    return f"{100 * (fmean(_last(runs)) - min(_last(runs))):.1f}" if runs else "–"


def _ratio(ours: Sequence[tuple[Record, Sequence[float]]], theirs: Sequence[tuple[Record, Sequence[float]]]) -> str:
    return f"{_bytes(theirs) / _bytes(ours):.1f}" if ours and theirs else "–"


def _bytes(runs: Sequence[tuple[Record, Sequence[float]]]) -> float:
    return fmean(summary["bytes_up"] + summary["bytes_down"] for summary, _ in runs)
