"""Tables: one run's summary, and several runs side by side."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from rich.table import Table

from efl.track.text import bytes_text, duration, mean_and_deviation, merit, number, outcome

Summary = Mapping[str, Any]

NEARLY_BEST = 0.9
ACCURACY = "accuracy"


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
    name, share = summary.get("metric", ACCURACY), summary.get("metric_is_share", True)
    final, worst = _final(summary), _worst(summary)
    return [
        ("algorithm", f"{summary['algorithm']} on {summary['dataset']}, seed {summary['seed']}"),
        ("ended", outcome(summary)),
        (f"best mean {name}, global model", merit(summary["bmta_global"], share)),
        (f"best mean {name}, personalised models", merit(summary["bmta_local"], share)),
        (f"final mean {name}", merit(final, share)),
        *((f"final mean {other}", f"{value:.4g}") for other, value in _others(summary).items()),
        ("worst tenth of clients", merit(worst, share)),
        ("training loss", number(summary["train_loss"])),
        ("bytes up / down", f"{bytes_text(summary['bytes_up'])} / {bytes_text(summary['bytes_down'])}"),
        ("time", f"{summary['seconds']:.1f} s, {summary['samples_per_second']:,.0f} samples/s"),
        *([("privacy", privacy_text(summary))] if "epsilon" in summary else []),
        *([("simulated time", duration(simulated) + reached)] if simulated is not None else []),
        ("model", f"{summary['parameters']:,} parameters, sha256 {summary['model_sha256'][:12]}"),
    ]


def privacy_text(summary: Summary) -> str:
    """What a run has spent of its privacy.

    >>> privacy_text({"epsilon": 7.9612, "delta": 1e-5, "noise_multiplier": 0.8131, "epsilon_budget": 8.0})
    'ε = 7.96 of 8 at δ = 1e-05, noise multiplier 0.8131'
    """
    budget = "" if summary["epsilon_budget"] is None else f" of {summary['epsilon_budget']:g}"
    noise = f"noise multiplier {summary['noise_multiplier']:g}"
    return f"ε = {summary['epsilon']:.2f}{budget} at δ = {summary['delta']:g}, {noise}"


def _final(summary: Summary) -> float | None:
    """The figure of merit at the end; older summaries have accuracy alone."""
    found: float | None = summary["final_mean"] if "final_mean" in summary else summary["final_mean_accuracy"]
    return found


def _worst(summary: Summary) -> float | None:
    """The same of the worst tenth of the clients."""
    found: float | None = summary["worst_decile"] if "worst_decile" in summary else summary["worst_decile_accuracy"]
    return found


def _others(summary: Summary) -> dict[str, float]:
    """All metrics but the first."""
    found = summary.get("final_metrics", {})
    return {name: value for name, value in found.items() if name != summary.get("metric") and value is not None}


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
    """Header and rows as text; shares in percent."""
    every = [run for runs in groups.values() for run in runs]
    share = all(run.get("metric_is_share", True) for run in every)
    target = _target(groups)
    unit = "%" if share else next(iter(every), {}).get("metric", "")
    header = ["algorithm", *(f"{what} {unit}" for what in ("global", "personalised", "final", "worst"))]
    header += ["up", "down", "s"]
    header += [f"bytes to {merit(target, share)}"] if target is not None else []
    timed = any(run.get("seconds_to_target") is not None for run in every)
    header += [f"time to {merit(target, share)}"] if timed and target is not None else []
    rows = [
        [
            name + _diverged(runs),
            *(mean_and_deviation([v for v in map(of, runs) if v is not None], share=share) for of in FIGURES),
            *(bytes_text(mean(run[key] for run in runs)) for key in ("bytes_up", "bytes_down")),
            f"{mean(run['seconds'] for run in runs):.0f}",
            *([_to_target(runs, target)] if target is not None else []),
            *([_time_to_target(runs)] if timed and target is not None else []),
        ]
        for name, runs in groups.items()
    ]
    return header, rows


def _target(groups: Mapping[str, Sequence[Summary]]) -> float | None:
    """What runs were to reach; where they had no aim, nearly the best that an algorithm reached.

    That is nine tenths of the best where more is better; where less is, ten ninths, or as much worse if it is negative.
    With several seeds it is the best of what the worst seed of each algorithm reached, so that one lucky run does not
    set what none of the algorithms reaches with all of its seeds.
    """
    runs = [run for some in groups.values() for run in some]
    aims = [run["target_accuracy"] for run in runs if run.get("target_accuracy") is not None]
    best, worst = (max, min) if _higher(runs) else (min, max)
    reached = [[run["bmta_global"] for run in some if run["bmta_global"] is not None] for some in groups.values()]
    if aims or not any(reached):
        return best(aims) if aims else None
    found: float = best(worst(values) for values in reached if values)
    return found * (NEARLY_BEST if (found >= 0) == _higher(runs) else 1 / NEARLY_BEST)


def _higher(runs: Sequence[Summary]) -> bool:
    return all(run.get("higher_is_better", True) for run in runs)


def _to_target(runs: Sequence[Summary], target: float) -> str:
    """The mean over seeds of the bytes both ways it took to get there; a dash if a seed never did."""
    sign = 1 if _higher(runs) else -1
    needed = [
        next((sent for sent, found in run["accuracy_over_bytes"] if sign * found >= sign * target), None)
        for run in runs
    ]
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


# What a comparison shows of every run.
FIGURES: tuple[Callable[[Summary], float | None], ...] = (
    lambda run: run["bmta_global"],
    lambda run: run["bmta_local"],
    _final,
    _worst,
)


def reputation_rows(summary: Mapping[str, Any], most: int = 20) -> list[list[str]]:
    """The clients of least reputation, a header above them; nothing where nobody is in doubt.

    >>> reputation_rows({"reputation": {"7": {"reputation": 0.05, "trust": 0.1, "rejected": 3}}})[1]
    ['7', '0.05', '0.10', '3']
    """
    found = sorted(summary.get("reputation", {}).items(), key=lambda pair: pair[1]["reputation"])[:most]
    rows = [[name, f"{one['reputation']:.2f}", f"{one['trust']:.2f}", str(one["rejected"])] for name, one in found]
    return [["client", "reputation", "trust", "rejected replies"], *rows] if rows else []
