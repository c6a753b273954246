"""The simulator of Theorem 1's round."""

import numpy as np
import pytest

from efl.paper.convergence import Curve, judge
from efl.theory import Constants, Participation, Theorem1
from efl.theory.problems import Quadratic
from efl.theory.simulate import simulate

NOISY = Quadratic.random(5, clients=4, dimension=3, noise=1.0)


def test_two_rounds_by_hand():
    """One parameter, clients ½w² and ½(w − 2)², no noise, E = 2: w ← w + ½Σ_k((1 − η)² − 1)(w − a_k)."""
    problem = Quadratic(np.ones(2), np.ones((2, 1, 1)), np.array([[0.0], [2.0]]), np.zeros(2))
    theorem = Theorem1(problem.constants(3), [Participation.complete(problem.shares, 2)], distance=9)
    assert theorem.gamma == 64
    path = simulate(problem, theorem, rounds=2, seeds=3, start=np.array([4.0]))
    first, second = 32 / (66 * 2), 32 / (68 * 2)
    expected = [4, 1 + 3 * (1 - first) ** 2, 1 + 3 * (1 - first) ** 2 * (1 - second) ** 2]
    np.testing.assert_allclose(path.models[:, :, 0], np.repeat(np.array(expected)[:, None], 3, 1))
    assert path.errors(np.array([1.0]))[0].tolist() == [9, 9, 9]
    assert path.farthest == 3


def test_steps_and_weights_follow_the_tables():
    """s = 1 with weight 2p for client 0, s = 0 for client 1: only one step of one client counts, twice."""
    problem = Quadratic(np.ones(2), np.ones((2, 1, 1)), np.array([[0.0], [2.0]]), np.zeros(2))
    chance = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    law = Participation(problem.shares, chance, np.array([[0.0, 1.0, 0.5], [0.0, 1.0, 0.5]]))
    theorem = Theorem1(problem.constants(3), [law], distance=9)
    path = simulate(problem, theorem, rounds=1, seeds=2, start=np.array([4.0]))
    np.testing.assert_allclose(path.models[1], 4 * (1 - theorem.learning_rate(0)))


def test_a_seed_is_the_same_run_however_many_there_are():
    theorem = Theorem1(NOISY.constants(3), [Participation.incomplete(NOISY.shares, 3)], distance=1)
    few, many = (simulate(NOISY, theorem, rounds=60, seeds=seeds, start=NOISY.optimum).models for seeds in (2, 5))
    np.testing.assert_array_equal(few, many[:, :2])
    assert len(np.unique(many[-1, :, 0])) == 5


def test_a_second_phase_draws_other_numbers():
    theorem = Theorem1(NOISY.constants(3), [Participation.complete(NOISY.shares, 2)], distance=1)
    first, second = (
        simulate(NOISY, theorem, rounds=3, seeds=1, start=NOISY.optimum, first_round=round_).models for round_ in (0, 3)
    )
    assert not np.allclose(first[1], second[1])


def test_shares_of_steps_are_those_of_the_law():
    """With weights that make s visible: E[Σ p s] from the run is the law's."""
    problem = Quadratic(np.ones(2), np.ones((2, 1, 1)), np.full((2, 1), 1e9), np.zeros(2))
    law = Participation.inactive(problem.shares, 1, [0.2, 0.7])
    theorem = Theorem1(problem.constants(1), [law], distance=1)
    path = simulate(problem, theorem, rounds=200, seeds=20, start=np.array([0.0]))
    pulls = np.diff(path.models[:, :, 0], axis=0) / (1e9 - path.models[:-1, :, 0])
    rates = np.array([theorem.learning_rate(round_) for round_ in range(200)])
    assert (pulls / rates[:, None]).mean() == pytest.approx(0.5 * 0.8 + 0.5 * 0.3, abs=0.02)


def test_the_check_against_the_bound_can_fail():
    """Constants that deny the noise give a bound that the run exceeds, and the check says so."""
    honest = NOISY.constants(3)
    denied = Constants(
        smoothness=honest.smoothness, convexity=honest.convexity, gradient=0, noise=(0,) * 4, divergence=(0,) * 4,
        shares=honest.shares,
    )  # fmt: skip
    start = NOISY.optimum + 0.1
    verdicts = []
    for constants in (honest, denied):
        theorem = Theorem1(constants, [Participation.complete(NOISY.shares, 2)], distance=0.03)
        path = simulate(NOISY, theorem, rounds=200, seeds=20, start=start)
        curve = Curve("", path.errors(NOISY.optimum), theorem.bounds(200), range(0), None, 1, 1, path.farthest)
        verdicts.append(judge("noise", curve)[0].passed)
    assert verdicts == [True, False]


def test_a_stall_elsewhere_and_a_wrong_slope_fail():
    rounds = np.arange(1, 402)[:, None]
    falling = Curve("", 1 / rounds, np.full(401, 2.0), range(400), None, 1.0, 1.0, 1.0)
    assert [check.passed for check in judge("", falling)] == [True, True]
    assert falling.plain_slope == pytest.approx(-1, abs=0.01)
    too_fast = Curve("", rounds**-1.3, np.full(401, 2.0), range(400), None, 1.0, 1.0, 1.0)
    assert [check.passed for check in judge("", too_fast)] == [True, False]
    stalled = [Curve("", 0.5 + 0 * rounds, np.full(401, 2.0), range(0), height, 1, 1, 1) for height in (0.5, 0.3)]
    assert [judge("", curve)[1].passed for curve in stalled] == [True, False]
