"""The Fisher diagonal u^k that a client sends: observed on its way, or from samples where that ended."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from efl.training.local_work import LocalWork
from efl.training.observers import SquaredGradients

FisherKind = Literal["running", "empirical", "true"]


def information(work: LocalWork, observer: SquaredGradients | None, kind: FisherKind, samples: int) -> Tensor:
    """u^k (C, n): what was observed, or the exact diagonal at w_s, as large as what was observed, if anything was."""
    running = None if observer is None else observer.mean(work.steps_done)
    if running is not None and kind == "running":
        return running
    exact = work.fisher("model" if kind == "true" else "data", samples)
    return exact if running is None else as_large_as(running, exact)


def as_large_as(running: Tensor, exact: Tensor) -> Tensor:
    """Every row of ``exact`` (C, n) scaled to the sum of the same row of ``running``.

    Mini-batch gradients along a path are several to hundreds of times as large, squared, as those of single samples
    where it ends. Scaled, the kind of Fisher information decides where λ pulls, and not how hard.
    """
    sums = [[float(row.numpy().sum(dtype=np.float64)) for row in rows] for rows in (running, exact)]
    factors = [wanted / found if found > 0 else 0.0 for wanted, found in zip(*sums, strict=True)]
    return exact * torch.tensor(factors, dtype=torch.float32).unsqueeze(1)
