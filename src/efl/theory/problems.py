"""Strongly convex federations whose optimum and constants are known: the interface, and quadratic clients.

Gradients are computed for many repetitions at once. Local models are an array (clients, seeds, d).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from efl.rng import Purpose, stream
from efl.theory.constants import Array, Constants


class Problem(ABC):
    """A federation F = Σ_k p^k F_k, with p^k = n_k/n."""

    @property
    def shares(self) -> Array:
        """p^k."""
        return np.asarray(self.samples / self.samples.sum())

    @cached_property
    def optimum(self) -> Array:
        """w*, the minimiser of F."""
        return self.minimiser(self.shares)

    @cached_property
    def minima(self) -> Array:
        """F_k* of each client."""
        own = np.eye(len(self.samples))
        return np.array([self.values(self.minimiser(row))[k] for k, row in enumerate(own)])

    def divergence(self, w: Array) -> Array:
        """F_k(w) − F_k* of each client; at the optimum this is D_k."""
        return np.maximum(self.values(w) - self.minima, 0)

    def excess(self, models: Array) -> Array:
        """F(w) − F* of models (…, d)."""
        flat = models.reshape(-1, models.shape[-1])
        values = np.array([self.shares @ self.values(w) for w in flat]) - self.shares @ self.values(self.optimum)
        return values.reshape(models.shape[:-1])

    def constants(self, radius: float) -> Constants:
        """L, μ, σ_k, D_k, and G valid for all models within ``radius`` of the optimum.

        No strongly convex function has bounded gradients everywhere, so Assumption 4 needs such a ball. Whoever uses
        the constants must see to it that no model leaves it.
        """
        return Constants(
            smoothness=self.smoothness,
            convexity=self.convexity,
            gradient=self.gradient_bound(radius),
            noise=tuple(self.noise.tolist()),
            divergence=tuple(self.divergence(self.optimum).tolist()),
            shares=tuple(self.shares.tolist()),
        )

    @property
    @abstractmethod
    def samples(self) -> Array:
        """n_k."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """L, of the client that is least smooth."""

    @property
    @abstractmethod
    def convexity(self) -> float:
        """μ, of the client that is least convex."""

    @property
    @abstractmethod
    def noise(self) -> Array:
        """σ_k."""

    @abstractmethod
    def gradient_bound(self, radius: float) -> float:
        """G for models within ``radius`` of the optimum."""

    @abstractmethod
    def values(self, w: Array) -> Array:
        """F_k(w) of each client."""

    @abstractmethod
    def minimiser(self, weights: Array) -> Array:
        """The w that minimises Σ_k weights_k·F_k, to machine precision."""

    @abstractmethod
    def without(self, client: int) -> Problem:
        """The federation without a client."""

    @abstractmethod
    def draw(self, generator: np.random.Generator, steps: int) -> Array:
        """The randomness of ``steps`` stochastic gradients of every client: (steps, clients, …)."""

    @abstractmethod
    def gradient(self, models: Array, drawn: Array) -> Array:
        """Stochastic gradients at local models (clients, seeds, d), from ``drawn`` of shape (clients, seeds, …)."""


@dataclass(frozen=True, eq=False)
class Quadratic(Problem):
    """F_k(w) = ½(w − a_k)ᵀH_k(w − a_k); gradients have Gaussian noise of variance σ_k² in all."""

    sizes: Array  # (clients,): n_k
    hessians: Array  # (clients, d, d)
    centres: Array  # (clients, d): a_k
    deviations: Array  # (clients,): σ_k

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        clients: int,
        dimension: int,
        convexity: float = 1.0,
        smoothness: float = 2.0,
        spread: float = 1.0,
        noise: float = 1.0,
        samples: Sequence[float] | Array | None = None,
    ) -> Quadratic:
        """Hessians with eigenvalues in [μ, L], in random directions; centres about ``spread`` away from the origin."""
        generator = stream(seed, Purpose.DATA)
        directions, _ = np.linalg.qr(generator.standard_normal((clients, dimension, dimension)))
        eigenvalues = generator.uniform(convexity, smoothness, (clients, dimension))
        hessians = np.einsum("kij,kj,klj->kil", directions, eigenvalues, directions)
        centres = spread * generator.standard_normal((clients, dimension)) / np.sqrt(dimension)
        sizes = generator.integers(20, 200, clients) if samples is None else samples
        return cls(np.asarray(sizes, dtype=np.float64), hessians, centres, np.full(clients, noise))

    @property
    def samples(self) -> Array:
        """n_k."""
        return self.sizes

    @property
    def noise(self) -> Array:
        """σ_k."""
        return self.deviations

    @property
    def smoothness(self) -> float:
        """The largest eigenvalue of any Hessian."""
        return float(self._eigenvalues.max())

    @property
    def convexity(self) -> float:
        """The smallest eigenvalue of any Hessian."""
        return float(self._eigenvalues.min())

    @property
    def dissimilarity(self) -> float:
        """δ: how far a client's Hessian is from that of F, in the spectral norm."""
        mean = np.einsum("k,kij->ij", self.shares, self.hessians)
        return float(np.linalg.norm(self.hessians - mean, ord=2, axis=(1, 2)).max())

    def gradient_bound(self, radius: float) -> float:
        """‖H_k(w − a_k)‖ ≤ ‖H_k(w* − a_k)‖ + λ_max·radius, and the noise in quadrature."""
        at_optimum = np.linalg.norm(self._pulls(self.optimum), axis=1)
        within = at_optimum + self._eigenvalues.max(1) * radius
        return float(np.sqrt(within**2 + self.noise**2).max())

    def values(self, w: Array) -> Array:
        """F_k(w) of each client."""
        return np.asarray(0.5 * ((w - self.centres) * self._pulls(w)).sum(1))

    def excess(self, models: Array) -> Array:
        """F(w) − F* = ½(w − w*)ᵀH(w − w*), for all models at once."""
        away = models - self.optimum
        return np.asarray(0.5 * ((away @ np.einsum("k,kij->ij", self.shares, self.hessians)) * away).sum(-1))

    def minimiser(self, weights: Array) -> Array:
        """The solution of Σ_k weights_k·H_k(w − a_k) = 0."""
        total = np.einsum("k,kij->ij", weights, self.hessians)
        return np.asarray(np.linalg.solve(total, np.einsum("k,kij,kj->i", weights, self.hessians, self.centres)))

    def without(self, client: int) -> Quadratic:
        """The other clients."""
        rest = np.arange(len(self.samples)) != client
        return Quadratic(self.sizes[rest], self.hessians[rest], self.centres[rest], self.deviations[rest])

    def draw(self, generator: np.random.Generator, steps: int) -> Array:
        """Gaussian noise, (steps, clients, d)."""
        clients, dimension = self.centres.shape
        scale = self.noise[:, None] / np.sqrt(dimension)
        return np.asarray(scale * generator.standard_normal((steps, clients, dimension)))

    def gradient(self, models: Array, drawn: Array) -> Array:
        """H_k(w − a_k) + noise."""
        return np.asarray((models - self.centres[:, None]) @ self.hessians + drawn)

    def _pulls(self, w: Array) -> Array:
        """∇F_k(w) of each client."""
        return np.asarray(np.einsum("kij,kj->ki", self.hessians, w - self.centres))

    @cached_property
    def _eigenvalues(self) -> Array:
        return np.asarray(np.linalg.eigvalsh(self.hessians))
