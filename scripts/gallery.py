"""The gallery of docs/fleet.md: what each kind of irregularity does to FedAvg, FedProx and EFL, a picture each.

Digits, 20 clients. Run it from the root of the repository; it takes some minutes on one core, and goes on where it was
stopped. A picture has a panel for each algorithm and a curve for each way; bands span the seeds if there are several.

    python scripts/gallery.py [--only NAME] [--seeds 1] [--runs DIR]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from efl.config import parse
from efl.runs.comparison import Job, run_jobs
from efl.runs.directory import Record, RunDirectory
from efl.track.figures import COLOURS

DOCS = Path(__file__).resolve().parents[1] / "docs"
ALGORITHMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "FedAvg": ("fedavg", {}),
    "FedProx": ("fedprox", {}),
    "EFL": ("efl", {"density_up": 0.05, "density_down": 0.05}),
}
REGULAR = {"stragglers": 0.0, "inactive": 0.0}
SETTING: Mapping[str, Mapping[str, Any]] = {
    "federation": {"clients": 20, "partition": "classes:2"},
    "training": {"rounds": 120, "cohort": 10, "local_steps": 10, "evaluate_every": 4, "evaluate_own_every": "never"},
}


@dataclass(frozen=True)
class Way:
    """A curve: what it is called, and what is changed against the picture's setting."""

    name: str
    fleet: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """One kind of irregularity."""

    name: str
    title: str
    ways: Sequence[Way]
    federation: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    over: str = "round"
    by_arrival: bool = False


HALF_SILENT = [0.9 if client % 2 else 0.0 for client in range(20)]
PICTURES = (
    Picture(
        "incomplete",
        "Incomplete clients: a share of them does between 0 and E − 1 steps",
        [Way("none"), Way("50 %", {"stragglers": 0.5}), Way("90 %", {"stragglers": 0.9})],
    ),
    Picture(
        "inactive",
        "Inactive clients: the same silence for all, or all of it from one half of the clients",
        [Way("none"), Way("all 45 %", {"inactive": 0.45}), Way("half of them 90 %", {"inactive": HALF_SILENT})],
        training={"cohort": 20},
    ),
    Picture(
        "departures",
        "Departures: ten of the 20 clients leave before round 30; accuracy is that of all 20",
        [
            Way("nobody departs"),
            Way("kept in the objective", {"departures": [[30, 10]]}),
            Way("dropped", {"departures": [[30, 10]], "on_departure": "drop"}),
        ],
    ),
    Picture(
        "arrivals",
        "Arrivals: ten clients with digits nobody had come before round 60 (dashed: their digits)",
        [
            Way("restart", {"arrivals": [[60, 10]]}),
            Way("no restart", {"arrivals": [[60, 10]]}, {"restart": False}),
        ],
        federation={"partition": "groups:5"},
        training={"cohort": 20, "decay": 5, "learning_rate": 0.3},
        by_arrival=True,
    ),
    Picture(
        "abandoning",
        "Abandoning: four clients stop answering nine times in ten from round 20 to round 70",
        [Way("kept"), Way("abandoned above 0.6, taken back", {"abandon": 0.6})],
        training={"cohort": 20},
    ),
    Picture(
        "traces",
        "Simulated time: phones that charge at night, and rounds with a deadline",
        [
            Way("no deadline", {"trace": "phones", "selection": "available"}),
            Way("100 s", {"trace": "phones", "selection": "available", "deadline": 100}),
            Way("50 s", {"trace": "phones", "selection": "available", "deadline": 50}),
        ],
        federation={"clients": 50},
        over="hours",
    ),
)
SOMETIMES_AWAY = [0.9 if client < 4 else 0.0 for client in range(20)]
FLEETS = {"abandoning": {"stragglers": 0.0, "inactive": [[0, 0.0], [20, SOMETIMES_AWAY], [70, 0.0]]}}


def jobs(picture: Picture, seeds: int, runs: Path) -> dict[tuple[str, str], list[Job]]:
    """The runs of a picture, by algorithm and way."""
    found: dict[tuple[str, str], list[Job]] = {}
    for label, (algorithm, settings) in ALGORITHMS.items():
        for number, way in enumerate(picture.ways):
            for seed in range(seeds):
                experiment = parse(
                    {
                        "federation": {**SETTING["federation"], **picture.federation},
                        "training": {**SETTING["training"], **picture.training, **way.training, "seed": seed},
                        "algorithm": {"name": algorithm, **settings},
                        "fleet": {**FLEETS.get(picture.name, REGULAR), **way.fleet},
                        "engine": {"workers": 1},
                        "track": {"checkpoint_every": 1000},
                    }
                )
                directory = runs / f"{picture.name}-{algorithm}-{number}-seed{seed}"
                found.setdefault((label, way.name), []).append(Job(label, experiment, directory))
    return found


def draw(picture: Picture, found: Mapping[tuple[str, str], Sequence[Job]], path: Path) -> None:
    """A panel for each algorithm."""
    figure, axes = plt.subplots(1, 3, figsize=(10.4, 3.3), sharey=True, layout="constrained")
    for axis, label in zip(axes, ALGORITHMS, strict=True):
        for colour, way in zip(COLOURS, picture.ways, strict=False):
            histories = [RunDirectory.open(job.directory).history() for job in found[label, way.name]]
            curves = {"0": "-", "60": "--"} if picture.by_arrival else {"": "-"}
            for group, style in curves.items():
                x, y = points(histories, picture.over, group)
                axis.plot(x, y.mean(0), style, color=colour, lw=1.6, label=way.name if style == "-" else None)
                axis.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, lw=0)
            print(f"{picture.name:<11} {label:<8} {way.name:<32} {ending(histories, picture)}")
        axis.set(title=label, xlabel="simulated hours" if picture.over == "hours" else "round", ylim=(0, 1))
        axis.title.set_fontsize(10)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("mean accuracy")
    figure.suptitle(picture.title, fontsize=10)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def points(histories: Sequence[Sequence[Record]], over: str, group: str) -> tuple[np.ndarray, np.ndarray]:
    """x, and a row of y for each seed; x is the mean over seeds."""
    looked = [[record for record in history if "accuracy" in record] for history in histories]
    if group:
        looked = [[record for record in found if group in record["accuracy_by_arrival"]] for found in looked]
    y = [[r["accuracy_by_arrival"][group] if group else r["accuracy"] for r in found] for found in looked]
    x = [[r["simulated_seconds"] / 3600 if over == "hours" else r["round"] + 1 for r in found] for found in looked]
    return np.mean(x, axis=0), np.array(y)


def ending(histories: Sequence[Sequence[Record]], picture: Picture) -> str:
    """How the runs end, in a line."""
    last = [history[-1] for history in histories]
    text = f"accuracy at the end {np.mean([record['accuracy'] for record in last]):.3f}"
    if picture.by_arrival:
        old, new = (np.mean([record["accuracy_by_arrival"][since] for record in last]) for since in ("0", "60"))
        text += f", founders {old:.3f}, newcomers {new:.3f} ({new / old:.0%})"
    if picture.over == "hours":
        hours = [first_hour(history) for history in histories]
        text += f", 70 % after {', '.join(hours)} h of {np.mean([r['simulated_seconds'] for r in last]) / 3600:.1f}"
    if changes := [c["what"] for record in histories[0] for c in record.get("membership", []) for _ in c["clients"]]:
        text += f"; {', '.join(f'{changes.count(what)} {what}' for what in dict.fromkeys(changes))}"
    return text


def first_hour(history: Sequence[Record], target: float = 0.7) -> str:
    """When the accuracy first reached the target."""
    times = [r["simulated_seconds"] for r in history if r.get("accuracy", 0) >= target]
    return f"{times[0] / 3600:.1f}" if times else "–"


def main() -> None:
    """Make what is missing, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[picture.name for picture in PICTURES])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/gallery"))
    arguments = parser.parse_args()
    for picture in PICTURES:
        if arguments.only in (None, picture.name):
            found = jobs(picture, arguments.seeds, arguments.runs)
            run_jobs([job for group in found.values() for job in group], workers=1)
            draw(picture, found, DOCS / f"fleet-{picture.name}.png")


if __name__ == "__main__":
    main()
