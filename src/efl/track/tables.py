"""Tables: one run's summary, and several runs side by side."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from rich.table import Table

from efl.track.text import bytes_text, duration, mean_and_deviation, number, outcome, percent

Summary = Mapping[str, Any]

NEARLY_BEST = 0.9


def summary_table(summary: Summary) -> Table:
    """What a run came to."""
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, value in summary_rows(summary):
        table.add_row(name, value)
    return table


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """The same as pairs of text."""
    simulated = summary.get("simulated_seconds")
    to_target = summary.get("seconds_to_target")
    reached = f", {duration(to_target)} to the target" if to_target is not None else ""
    return [
        ("algorithm", f"{summary['algorithm']} on {summary['dataset']}, seed {summary['seed']}"),
        ("ended", outcome(summary)),
        ("best mean accuracy, global model", percent(summary["bmta_global"])),
        ("best mean accuracy, personalised models", percent(summary["bmta_local"])),
        ("final mean accuracy", percent(summary["final_mean_accuracy"])),
        ("worst tenth of clients", percent(summary["worst_decile_accuracy"])),
        ("training loss", number(summary["train_loss"])),
        ("bytes up / down", f"{bytes_text(summary['bytes_up'])} / {bytes_text(summary['bytes_down'])}"),
        ("time", f"{summary['seconds']:.1f} s, {summary['samples_per_second']:,.0f} samples/s"),
        *([("simulated time", duration(simulated) + reached)] if simulated is not None else []),
        ("model", f"{summary['parameters']:,} parameters, sha256 {summary['model_sha256'][:12]}"),
    ]


def comparison_table(groups: Mapping[str, Sequence[Summary]]) -> Table:
    """A row for each algorithm: means over its seeds, with the standard deviation where there are several."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    header, rows = comparison_rows(groups)
    table.add_column(header[0], no_wrap=True)
    for title in header[1:]:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def comparison_rows(groups: Mapping[str, Sequence[Summary]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text; accuracies in percent."""
    target = _target([run for runs in groups.values() for run in runs])
    header = ["algorithm", "global %", "personalised %", "final %", "worst %", "up", "down", "s"]
    header += [f"bytes to {percent(target)}"] if target is not None else []
    timed = any(run.get("seconds_to_target") is not None for runs in groups.values() for run in runs)
    header += [f"time to {percent(target)}"] if timed and target is not None else []
    accuracies = ("bmta_global", "bmta_local", "final_mean_accuracy", "worst_decile_accuracy")
    rows = [
        [
            name + _diverged(runs),
            *(mean_and_deviation([run[key] for run in runs if run[key] is not None]) for key in accuracies),
            *(bytes_text(mean(run[key] for run in runs)) for key in ("bytes_up", "bytes_down")),
            f"{mean(run['seconds'] for run in runs):.0f}",
            *([_to_target(runs, target)] if target is not None else []),
            *([_time_to_target(runs)] if timed and target is not None else []),
        ]
        for name, runs in groups.items()
    ]
    return header, rows


def _target(runs: Sequence[Summary]) -> float | None:
    """The accuracy that runs were to reach; where they had no aim, nine tenths of the best that any of them reached."""
    aims = [run["target_accuracy"] for run in runs if run.get("target_accuracy") is not None]
    reached = [run["bmta_global"] for run in runs if run["bmta_global"] is not None]
    return max(aims) if aims else NEARLY_BEST * max(reached) if reached else None


def _to_target(runs: Sequence[Summary], target: float) -> str:
    """The mean over seeds of the bytes both ways it took to get there; a dash if a seed never did."""
    needed = [next((sent for sent, found in run["accuracy_over_bytes"] if found >= target), None) for run in runs]
    known = [sent for sent in needed if sent is not None]
    return bytes_text(mean(known)) if len(known) == len(needed) else "–"


def _time_to_target(runs: Sequence[Summary]) -> str:
    """The same by the simulated clock."""
    needed = [float(run["seconds_to_target"]) for run in runs if run.get("seconds_to_target") is not None]
    return duration(mean(needed)) if len(needed) == len(runs) else "–"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows as a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _diverged(runs: Sequence[Summary]) -> str:
    count = sum(run["diverged"] for run in runs)
    return f" ({count} of {len(runs)} diverged)" if count else ""
