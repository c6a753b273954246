"""The round as Theorem 1 describes it, for many seeds at once.

In round τ every client starts from the server's w, does s of E steps of SGD, and w += Σ_k p_τ^k (w^k − w). There is no
compression: the theorem leaves the residuals out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from efl.rng import Purpose, stream
from efl.theory.constants import Array
from efl.theory.participation import Participation
from efl.theory.problems import Problem
from efl.theory.theorem1 import Theorem1

# Random numbers are drawn for so many rounds at a time; the stream's address is the first of them.
BLOCK = 50


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The server's models, (rounds + 1, seeds, d), and how far any model, the clients' too, was from the optimum."""

    models: Array
    farthest: float

    def errors(self, target: Array) -> Array:
        """‖w_τ − target‖² for each round and seed."""
        return np.asarray(((self.models - target) ** 2).sum(2))


def simulate(
    problem: Problem, theorem: Theorem1, *, rounds: int, seeds: int, start: Array, first_round: int = 0
) -> Trajectory:
    """Run ``rounds`` rounds with the theorem's learning rate and fleet; ``start`` is (d,) or has a model for each seed.

    ``first_round`` only addresses the random numbers: a second phase, with its own theorem, must not reuse the first's.
    """
    w = np.array(np.broadcast_to(start, (seeds, np.shape(start)[-1])), dtype=np.float64)
    models, farthest = [w], float(((w - problem.optimum) ** 2).sum(1).max())
    for round_, (absence, drawn) in enumerate(_randomness(problem, theorem.local_steps, rounds, seeds, first_round)):
        steps, weight = _plan(theorem.law(round_), absence)
        eta = theorem.learning_rate(round_)
        local = np.broadcast_to(w, (len(problem.samples), *w.shape))
        for j in range(int(steps.max())):
            rate = np.where(j < steps, eta, 0)[..., None]
            local = local - rate * problem.gradient(local, drawn[j])
            farthest = max(farthest, float(((local - problem.optimum) ** 2).sum(2).max()))
        w = w + (weight[..., None] * (local - w)).sum(0)
        models.append(w)
    return Trajectory(np.array(models), float(np.sqrt(farthest)))


def _plan(law: Participation, uniform: Array) -> tuple[NDArray[np.int64], Array]:
    """Steps s and weights p_τ^k of each client and seed, (clients, seeds), from uniform numbers."""
    edges = law.chance.cumsum(1)[:, None, :-1]
    steps = (uniform[..., None] >= edges).sum(2)
    return steps, np.take_along_axis(law.weight, steps, 1)


def _randomness(problem: Problem, E: int, rounds: int, seeds: int, first: int) -> Iterator[tuple[Array, Array]]:
    """For each round: uniform numbers (clients, seeds), and what E gradients draw, (E, clients, seeds, …)."""
    clients = len(problem.samples)
    for block in range(first, first + rounds, BLOCK):
        count = min(BLOCK, first + rounds - block)
        uniform = [stream(seed, Purpose.BEHAVIOUR, block).random((BLOCK, clients)) for seed in range(seeds)]
        drawn = [problem.draw(stream(seed, Purpose.BATCHES, block), BLOCK * E) for seed in range(seeds)]
        absence, gradients = np.stack(uniform, 2), np.stack(drawn, 2)
        for i in range(count):
            yield absence[i], gradients[i * E : (i + 1) * E]
