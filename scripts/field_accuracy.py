"""What the short elastic field costs in accuracy against the lossless dense one, on the CNN.

    python scripts/field_accuracy.py 0 3 60

trains `cnn_large` (1,663,370 parameters) on mnist for 60 rounds on seeds 0, 1, 2: 100 clients of two classes, cohort
10, E = 20, B = 20, 50 % stragglers, density 1/100 both ways; once with the field in short, once in full. Needs mnist
in the data directory (`efl data prepare mnist`), and an hour on one core.
"""

import sys
from statistics import mean

import torch

import efl

KINDS = ("sparse", "dense")
EVERY = 4  # rounds
LAST = 5  # evaluations whose mean is taken, for one alone swings by points


class Curve:
    """An observer that keeps the accuracies."""

    def __init__(self) -> None:
        self.accuracies: list[float] = []

    def start(self, setup: object, history: object) -> None:
        """Nothing to prepare."""

    def round(self, record: dict[str, object]) -> None:
        """Keep what was measured."""
        if isinstance(accuracy := record.get("accuracy"), float):
            self.accuracies.append(100 * accuracy)

    def end(self, summary: object) -> None:
        """Nothing to put away."""


def trained(kind: str, seed: int, rounds: int) -> tuple[float, float]:
    """Best mean accuracy, and the mean of the last evaluations."""
    curve = Curve()
    efl.train(
        efl.load("mnist", clients=100, partition="classes:2", seed=seed),
        "cnn_large",
        efl.create("efl", {"field": kind}),
        efl.Fleet(stragglers=0.5, inactive=0.0),
        callbacks=[curve],
        rounds=rounds,
        cohort=10,
        local_steps=20,
        batch_size=20,
        evaluate_every=EVERY,
        evaluate_own_every="never",
        seed=seed,
    )
    return max(curve.accuracies), mean(curve.accuracies[-LAST:])


def main(first: int, last: int, rounds: int) -> None:
    """A line for every run, and the means."""
    torch.set_num_threads(1)
    table: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for seed in range(first, last):
        for kind in KINDS:
            table[kind].append(trained(kind, seed, rounds))
            print(f"seed {seed}  {kind:6s}  best {table[kind][-1][0]:.2f}  last {table[kind][-1][1]:.2f}", flush=True)
    for kind, rows in table.items():
        best, end = (mean(column) for column in zip(*rows, strict=True))
        print(f"mean    {kind:6s}  best {best:.2f}  last {end:.2f}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:4]))
