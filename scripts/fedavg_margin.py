"""How far EFL is above FedAvg on synthetic(1,1) with 90 % stragglers, seed by seed, and how far it could be at all.

    python scripts/fedavg_margin.py 30 60

prints for every seed the best mean accuracy of FedAvg, of EFL at density 1, and of two models trained on all data
in one place (L-BFGS): one that counts samples alike, as the objective does, and one that counts clients alike, as
the measure does. The last two bound what any federated algorithm can hope for.
"""

import sys
from statistics import mean, stdev

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import efl
from efl.federation import Federation

LOOKS = 15


def federated(federation: Federation, algorithm: object, seed: int) -> float:
    """Best mean accuracy in the setting of docs/ablation.md."""
    fleet = efl.Fleet(stragglers=0.9, inactive=0.0)
    result = efl.train(
        federation,
        "linear",
        algorithm,
        fleet,
        rounds=200,
        cohort=10,
        local_steps=20,
        batch_size=10,
        seed=seed,
        evaluate_own_every=200,
    )
    return 100 * result.summary["bmta_global"]


def pooled(federation: Federation, weights: Tensor) -> float:
    """Best mean accuracy of a linear model trained on everybody's data."""
    chosen = torch.from_numpy(np.concatenate(federation.train))
    x, y = federation.x[chosen], federation.y[chosen]
    model = nn.Linear(x.shape[1], federation.classes)
    optimiser = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = (F.cross_entropy(model(x), y, reduction="none") * weights).sum()
        value.backward()
        return value

    best = 0.0
    for _ in range(LOOKS):
        optimiser.step(loss)
        with torch.no_grad():
            answers = model(federation.x).argmax(1) == federation.y
        best = max(best, mean(answers[torch.from_numpy(test)].float().mean().item() for test in federation.test))
    return 100 * best


def main(first: int, last: int) -> None:
    """The table, and the margin's mean over seeds and over triples of seeds."""
    torch.set_num_threads(1)
    print("seed  FedAvg  EFL   pooled, samples alike  pooled, clients alike")
    rows: list[list[float]] = []
    for seed in range(first, last):
        federation = efl.load("synthetic:1,1", clients=30, seed=seed)
        sizes = torch.from_numpy(federation.sizes)
        alike = torch.repeat_interleave(1 / sizes, sizes).float()
        row = [
            federated(federation, efl.FedAvg(), seed),
            federated(federation, efl.EFL(density_up=1.0, density_down=1.0), seed),
            pooled(federation, torch.full_like(alike, 1 / len(alike))),
            pooled(federation, alike / alike.sum()),
        ]
        rows.append(row)
        print(f"{seed:4d}  " + "  ".join(f"{value:5.1f}" for value in row), flush=True)
    print("mean  " + "  ".join(f"{mean(column):5.1f}" for column in zip(*rows, strict=True)))
    margins = [ours - fedavg for fedavg, ours, *_ in rows]
    triples = [mean(margins[i : i + 3]) for i in range(0, len(margins) - 2, 3)]
    error = stdev(margins) / len(margins) ** 0.5
    print(f"EFL − FedAvg: {mean(margins):.2f} ± {error:.2f}; by triples {[round(t, 1) for t in triples]}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
