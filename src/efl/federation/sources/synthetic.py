"""synthetic(α, β) of FedProx (Li et al. 2018, section 5.1): how unlike clients' models (α) and data (β) are.

Client k draws u_k ~ N(0, α) and b_k ~ N(0, β), a softmax model with weights and biases ~ N(u_k, 1), a mean
v_k ~ N(b_k, 1) and samples x ~ N(v_k, Σ), Σ_jj = j^-1.2; y is the model's answer. Sizes are 50 plus a
log-normal draw. Two things are ours: the draw is cut at 10,000, and a client's lone sample of a class is
drawn again, so that a client is tested on every class it trains on.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from efl.errors import UserError
from efl.federation.federation import Federation
from efl.federation.partition import Indices
from efl.federation.sources.registry import SOURCES, DatasetRequest, DatasetSource
from efl.rng import Purpose, stream

FEATURES = 60
CLASSES = 10
MOST_APART = 1e6


def load(request: DatasetRequest) -> Federation:
    """``synthetic:ALPHA,BETA``; the natural partition keeps every client's own data."""
    alpha, beta = _parameters(request.dataset)
    deviation = np.arange(1.0, FEATURES + 1) ** -0.6
    xs, ys = [], []
    for client in range(request.clients):
        rng = stream(request.seed, Purpose.DATA, client=client)
        x, y = _client(rng, alpha, beta, deviation)
        xs.append(x)
        ys.append(y)
    owners = np.repeat(np.arange(request.clients), [len(y) for y in ys])
    return Federation.from_tensors(
        torch.from_numpy(np.concatenate(xs).astype(np.float32)),
        torch.from_numpy(np.concatenate(ys)),
        owners=owners,
        **request.dealing,
    )


def _parameters(dataset: str) -> tuple[float, float]:
    try:
        alpha, beta = (float(part) for part in dataset.removeprefix("synthetic:").split(","))
        if not (0 <= alpha <= MOST_APART and 0 <= beta <= MOST_APART):
            raise ValueError
    except ValueError:
        raise UserError(
            f"dataset {dataset!r}: write synthetic:ALPHA,BETA with two numbers ≥ 0, such as synthetic:1,1"
        ) from None
    return alpha, beta


def _client(
    rng: np.random.Generator, alpha: float, beta: float, deviation: NDArray[np.floating]
) -> tuple[NDArray[np.float64], Indices]:
    size = min(int(rng.lognormal(4.0, 2.0)), 10_000) + 50
    model_mean = rng.normal(0.0, alpha)
    weights = rng.normal(model_mean, 1.0, (FEATURES, CLASSES))
    bias = rng.normal(model_mean, 1.0, CLASSES)
    centre = rng.normal(rng.normal(0.0, beta), 1.0, FEATURES)

    def draw(count: int) -> tuple[NDArray[np.float64], Indices]:
        x = centre + rng.normal(size=(count, FEATURES)) * deviation
        return x, np.argmax(x @ weights + bias, axis=1).astype(np.int64)

    x, y = draw(size)
    while len(lone := np.flatnonzero(np.bincount(y, minlength=CLASSES)[y] == 1)):
        x[lone], y[lone] = draw(len(lone))
    return x, y


SOURCES.register(
    "synthetic",
    DatasetSource(
        "synthetic:ALPHA,BETA of FedProx, 60 features, 10 classes, made on the spot",
        "linear",
        "natural",
        make=load,
        owned=True,
        parameters="ALPHA,BETA",
    ),
)
