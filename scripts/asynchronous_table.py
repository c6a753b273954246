"""The table of docs/howto/asynchronous.md: digits on the trace ``phones``, for some hours of simulated time.

    python scripts/asynchronous_table.py [--seeds 3] [--hours 2.5] [--algorithms efl,fedavg]

Rounds wait for all, end at a deadline, with a buffer of replies, or with either; medians over seeds. A minute or two.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import efl

RULES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "waits for all": ({}, {}),
    "`fleet.deadline = 50`": ({"deadline": 50.0}, {}),
    "`training.buffer = 3`": ({}, {"buffer": 3}),
    "both": ({"deadline": 50.0}, {"buffer": 3}),
}
TARGETS = (0.7, 0.8)
MOST_ROUNDS, LAST = 2000, 5
HOUR = 3600.0


class UntilTime(efl.Callback):
    """Ends a run when so many simulated seconds have passed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def round(self, record: Mapping[str, Any]) -> bool:
        """Whether they have."""
        return bool(record["simulated_seconds"] >= self.seconds)


def figures(algorithm: str, rule: str, seed: int, hours: float) -> list[float | None]:
    """Hours to each target (None: never), the last accuracies' mean, rounds, and megabytes."""
    fleet, training = RULES[rule]
    history = efl.train(
        "digits",
        algorithm=algorithm,
        fleet=efl.Fleet(trace="phones", selection="available", **fleet),
        callbacks=[UntilTime(hours * HOUR)],
        seed=seed,
        rounds=MOST_ROUNDS,
        cohort=10,
        evaluate_every=1 if rule == "waits for all" else 5,
        **training,
    ).history
    evaluated = [record for record in history if "accuracy" in record]
    first = [next((r["simulated_seconds"] for r in evaluated if r["accuracy"] >= target), None) for target in TARGETS]
    megabytes = sum(record["bytes_up"] + record["bytes_down"] for record in history) / 1e6
    last = fmean(record["accuracy"] for record in evaluated[-LAST:])
    return [*(None if found is None else found / HOUR for found in first), last, len(history), megabytes]


def middle(values: Sequence[float | None]) -> float | None:
    """Their median; None, which is never, is larger than any."""
    found = median(float("inf") if value is None else value for value in values)
    return None if found == float("inf") else found


def main() -> None:
    """Print a row for every algorithm and rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hours", type=float, default=2.5)
    parser.add_argument("--algorithms", default="efl,fedavg")
    options = parser.parse_args()
    print("| | | hours to 70 % | to 80 % | accuracy | rounds | MB |\n|---|---|---|---|---|---|---|")
    for algorithm in options.algorithms.split(","):
        for rule in RULES:
            runs = [figures(algorithm, rule, seed, options.hours) for seed in range(options.seeds)]
            *hours, accuracy, rounds, megabytes = map(middle, zip(*runs, strict=True))
            times = " | ".join("–" if found is None else f"{found:.2f}" for found in hours)
            cost = f"{rounds:.0f} | {megabytes:.{1 if megabytes < 20 else 0}f}"
            print(f"| {algorithm} | {rule} | {times} | {100 * accuracy:.0f} % | {cost} |", flush=True)


if __name__ == "__main__":
    main()
