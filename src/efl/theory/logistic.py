"""Ridge logistic regression as a strongly convex federation; stochastic gradients are those of mini-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from efl.rng import Purpose, stream
from efl.theory.constants import Array
from efl.theory.problems import Problem


@dataclass(frozen=True, eq=False)
class Logistic(Problem):
    """F_k(w) = mean_i log(1 + exp(−z_i·w)) + ρ/2·‖w‖² over client k's samples, z = ±x by the label."""

    data: Sequence[Array]  # z of each client, (n_k, d)
    ridge: float  # ρ
    batch_size: int

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        samples: Sequence[int],
        dimension: int,
        ridge: float = 0.2,
        spread: float = 1.0,
        batch_size: int = 4,
    ) -> Logistic:
        """Clients with their own mean of x and their own true model; ``spread`` says how unlike they are."""
        generator = stream(seed, Purpose.DATA)
        common = generator.standard_normal(dimension)
        data: list[Array] = []
        for size in samples:
            truth = common + 2 * spread * generator.standard_normal(dimension)
            mean = spread * generator.standard_normal(dimension) / 2
            x = (mean + generator.standard_normal((size, dimension))) / np.sqrt(dimension)
            sign = np.where(generator.random(size) < _logistic(3 * x @ truth), 1.0, -1.0)
            data.append(x * sign[:, None])
        return cls(tuple(data), ridge, batch_size)

    @cached_property
    def samples(self) -> Array:
        """n_k."""
        return np.array([len(z) for z in self.data], dtype=np.float64)

    @cached_property
    def smoothness(self) -> float:
        """λ_max(ZᵀZ/n_k)/4 + ρ, since the logistic's slope is at most ¼."""
        return max(float(np.linalg.eigvalsh(z.T @ z / len(z)).max()) for z in self.data) / 4 + self.ridge

    @property
    def convexity(self) -> float:
        """ρ: far away the losses are flat and only the ridge curves."""
        return self.ridge

    @cached_property
    def noise(self) -> Array:
        """A sample's gradient has at most length ‖z‖, and b of them are averaged: σ_k² ≤ mean‖z‖²/b."""
        return np.sqrt(self._mean_square / self.batch_size)

    def gradient_bound(self, radius: float) -> float:
        """√E‖g‖² ≤ √mean‖z‖² + ρ‖w‖, by Minkowski's inequality."""
        farthest = float(np.linalg.norm(self.optimum)) + radius
        return float(np.sqrt(self._mean_square).max()) + self.ridge * farthest

    def values(self, w: Array) -> Array:
        """F_k(w) of each client."""
        return np.array([np.logaddexp(0, -z @ w).mean() for z in self.data]) + self.ridge / 2 * w @ w

    def minimiser(self, weights: Array) -> Array:
        """Newton's method; a step that does not shorten the gradient is halved, and the end is machine precision."""
        z = np.concatenate([z for z, weight in zip(self.data, weights, strict=True) if weight])
        each = np.concatenate(
            [np.full(len(z), weight / len(z)) for z, weight in zip(self.data, weights, strict=True) if weight]
        )
        w = np.zeros(z.shape[1])
        gradient, hessian = self._derivatives(z, each, w)
        while True:
            step, length = np.linalg.solve(hessian, gradient), 1.0
            while length > 1e-3:
                new, new_hessian = self._derivatives(z, each, w - length * step)
                if np.linalg.norm(new) < np.linalg.norm(gradient):
                    break
                length /= 2
            else:
                return w
            w, gradient, hessian = w - length * step, new, new_hessian

    def without(self, client: int) -> Logistic:
        """The other clients."""
        return Logistic(tuple(z for k, z in enumerate(self.data) if k != client), self.ridge, self.batch_size)

    def draw(self, generator: np.random.Generator, steps: int) -> Array:
        """Uniform numbers that become the samples of the mini-batches, (steps, clients, b)."""
        return generator.random((steps, len(self.data), self.batch_size))

    def gradient(self, models: Array, drawn: Array) -> Array:
        """The mini-batches' mean gradients, drawn with replacement."""
        first = np.cumsum(self.samples) - self.samples
        index = (first[:, None, None] + np.floor(drawn * self.samples[:, None, None])).astype(np.int64)
        batch = self._all[index]
        slope = _logistic(-(batch @ models[..., None])[..., 0])
        return np.asarray(self.ridge * models - (slope[..., None, :] @ batch)[..., 0, :] / self.batch_size)

    @cached_property
    def _all(self) -> Array:
        return np.concatenate(list(self.data))

    @cached_property
    def _mean_square(self) -> Array:
        return np.array([(z**2).sum(1).mean() for z in self.data])

    def _derivatives(self, z: Array, each: Array, w: Array) -> tuple[Array, Array]:
        """Gradient and Hessian of the objective in which sample i has weight ``each``_i."""
        slope, ridge = _logistic(-z @ w), self.ridge * each.sum()
        gradient = ridge * w - (each * slope) @ z
        hessian = (z * (each * slope * (1 - slope))[:, None]).T @ z + ridge * np.eye(len(w))
        return gradient, hessian


def _logistic(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))
