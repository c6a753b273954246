"""How good synthetic(1,1) can get, seed by seed: the optimum of all training data together, no federation at all.

    python scripts/synthetic_optima.py [--seeds 20] [--first 700]

Each seed is another problem. docs/results.md compares what federated methods reach on each with what can be reached:
the mean over clients of test accuracy, at the minimum of the mean training loss by full-batch L-BFGS. Some minutes.
"""

from __future__ import annotations

import argparse
from statistics import fmean

import torch

import efl

STEPS, HISTORY = 300, 20
CLIENTS = 50


def accuracy(seed: int) -> float:
    """Of the linear model that is best on all training data: the mean over clients on their own test data."""
    federation = efl.load("synthetic:1,1", clients=CLIENTS, seed=seed)
    x, y = torch.as_tensor(federation.x).double(), torch.as_tensor(federation.y)
    training = torch.cat([torch.as_tensor(rows) for rows in federation.train])
    model = torch.nn.Linear(x.shape[1], int(y.max()) + 1).double()
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=STEPS, history_size=HISTORY, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(model(x[training]), y[training])
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)
    with torch.no_grad():
        right = (model(x).argmax(1) == y).double()
    return fmean(float(right[torch.as_tensor(rows)].mean()) for rows in federation.test if len(rows))


def main() -> None:
    """The accuracy of each seed, and the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=700)
    chosen = parser.parse_args()
    found = []
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        found.append(accuracy(seed))
        print(f"seed {seed}: {100 * found[-1]:.1f} %", flush=True)
    print(f"mean {100 * fmean(found):.1f} %, lowest {100 * min(found):.1f} %")


if __name__ == "__main__":
    main()
