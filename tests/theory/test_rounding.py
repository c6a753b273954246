"""Stochastic rounding leaves Theorem 1's premise as it is, and adds a variance that is known."""

import numpy as np
import pytest
import torch
from quadratics import Quadratics

from efl.algorithms.base import RoundSettings
from efl.algorithms.compression.lattice import StochasticLattice
from efl.layout import Layout
from efl.theory import Constants, Participation, Theorem1
from efl.theory.theorem1 import expected_B
from efl.training.local_work import Assignment

N, CLIENTS, ROUNDS, A = 30, 6, 4000, 6.0


def test_the_aggregate_of_a_sampled_cohort_with_partial_work_is_unbiased():
    """Clients do s of 4 steps and count E/s, half of them are sampled and weigh p/π: rounded, the mean is as before."""
    rng = np.random.default_rng(0)
    problem = Quadratics(np.full((CLIENTS, N), 1e-4).tolist(), (1e4 * rng.normal(size=(CLIENTS, N))).tolist())
    codec = StochasticLattice(step_up=A)
    every, total, noise = [], np.zeros(N), 0.0
    for round_ in range(ROUNDS):
        chosen = np.sort(rng.choice(CLIENTS, CLIENTS // 2, replace=False))
        steps = np.sort(rng.integers(1, 5, len(chosen)))[::-1]
        settings = RoundSettings(round_, 0.1, 4, 1, Layout.flat(N))
        jobs = [Assignment(int(client), int(s)) for client, s in zip(chosen, steps, strict=True)]
        work = problem.work(jobs, torch.zeros(N), settings, {}, {})
        work.train()
        work.scale = (4 / work.steps_done).unsqueeze(1).float()
        exact = work.delta.numpy()
        sent = [payload.onto(np.zeros(N, np.float32)) for payload in codec.encode_up(work)]
        every.append(exact.sum(0) * 2 / CLIENTS)
        total += np.sum(sent, axis=0) * 2 / CLIENTS
        noise += np.square(sent - exact).sum() / np.square(exact).sum()
    exact_mean, deviation = np.mean(every, axis=0), np.std(every, axis=0)
    full = 0.1 * 4 * 1e-4 * problem.b.numpy().mean(0)  # E steps of everybody
    assert np.allclose(exact_mean, full, atol=5 * deviation.max() / np.sqrt(ROUNDS))
    assert np.allclose(total / ROUNDS, full, atol=15 * deviation.max() / np.sqrt(ROUNDS))
    assert np.abs(total / ROUNDS - exact_mean).max() < 0.1 * np.abs(full).max()
    epsilon = np.sqrt(2 / np.pi)  # of normal entries
    assert noise / ROUNDS == pytest.approx(A * epsilon - 1, rel=0.05)


def test_rounding_adds_its_variance_to_the_bound():
    """Two clients of share ½ that do all of 4 steps, G = 3: Σ p²s = 2, so ω = 5 adds 5·4·9·2 = 360."""
    pair = Constants(smoothness=4, convexity=2, gradient=3, noise=(1, 1), divergence=(1, 1), shares=(0.5, 0.5))
    fleet = Participation.complete(pair.shares, local_steps=4)
    assert expected_B(pair, fleet, 1.0, rounding=5.0) - expected_B(pair, fleet, 1.0) == pytest.approx(360)
    plain, rounded = (Theorem1(pair, [fleet], distance=1e-9, rounding=omega) for omega in (0.0, 5.0))
    assert rounded.bound(1000) > plain.bound(1000)
