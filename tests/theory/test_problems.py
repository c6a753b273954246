"""The test problems: their optimum and their constants are what they say."""

import numpy as np
import pytest

from efl.rng import Purpose, stream
from efl.theory.logistic import Logistic
from efl.theory.problems import Quadratic

QUADRATIC = Quadratic.random(3, clients=4, dimension=3, smoothness=5.0, spread=2.0)
LOGISTIC = Logistic.random(3, samples=[30, 50, 20], dimension=3, ridge=0.1)
PROBLEMS = pytest.mark.parametrize("problem", [QUADRATIC, LOGISTIC], ids=["quadratic", "logistic"])


def mean_gradients(problem, w, draws=20_000):
    """Mean and samples of every client's stochastic gradient at w."""
    drawn = problem.draw(stream(0, Purpose.BATCHES), draws)
    models = np.broadcast_to(w, (len(problem.samples), draws, len(w)))
    gradients = problem.gradient(models, np.swapaxes(drawn, 0, 1))
    return gradients.mean(1), gradients


def slopes(problem, w, step=1e-6):
    """∇F_k(w) by central differences."""
    sides = [(problem.values(w + step * e) - problem.values(w - step * e)) / (2 * step) for e in np.eye(len(w))]
    return np.array(sides).T


def test_two_quadratic_clients_by_hand():
    # F_1 = ½w², F_2 = ½·3·(w − 2)²; shares ¾ and ¼: w* = 1.5/1.5 = 1, D = (½, 1.5); within 1 of w*: G² = (3 + 3)² + 4.
    problem = Quadratic(
        np.array([3.0, 1.0]), np.array([[[1.0]], [[3.0]]]), np.array([[0.0], [2.0]]), np.array([1.0, 2.0])
    )
    constants = problem.constants(radius=1)
    assert problem.optimum.tolist() == [1.0]
    assert (constants.smoothness, constants.convexity) == (3, 1)
    assert constants.divergence == (0.5, 1.5)
    assert constants.gradient == pytest.approx(np.sqrt(40))
    assert (constants.noise, constants.shares) == ((1, 2), (0.75, 0.25))
    assert problem.dissimilarity == pytest.approx(1.5)
    assert problem.excess(np.array([[2.0], [1.0]])).tolist() == [0.75, 0.0]
    assert problem.without(1).optimum.tolist() == [0.0]


@PROBLEMS
def test_the_optimum_is_one_to_machine_precision(problem):
    scale = np.abs(slopes(problem, problem.optimum)).max()
    assert np.abs(problem.shares @ slopes(problem, problem.optimum)).max() < 1e-8 * max(scale, 1)
    away = stream(1, Purpose.DATA).standard_normal((50, 3))
    assert (problem.excess(problem.optimum + 1e-3 * away) > 0).all()


def test_newton_ends_where_the_gradient_is_rounding():
    each = np.concatenate([np.full(int(n), 1 / LOGISTIC.samples.sum()) for n in LOGISTIC.samples])
    gradient, _ = LOGISTIC._derivatives(np.concatenate(LOGISTIC.data), each, LOGISTIC.optimum)
    assert np.linalg.norm(gradient) < 1e-15


@PROBLEMS
def test_stochastic_gradients_are_unbiased_and_within_their_constants(problem):
    constants = problem.constants(radius=2)
    directions = stream(2, Purpose.DATA).standard_normal((5, 3))
    for direction in directions:
        w = problem.optimum + 2 * direction / np.linalg.norm(direction)
        mean, gradients = mean_gradients(problem, w)
        deviation = np.sqrt(((gradients - mean[:, None]) ** 2).sum(2).mean(1))
        np.testing.assert_allclose(mean, slopes(problem, w), atol=5 * max(constants.noise) / np.sqrt(20_000))
        assert (deviation <= np.array(constants.noise) * 1.02).all()
        assert (np.sqrt((gradients**2).sum(2).mean(1)) <= constants.gradient).all()


@PROBLEMS
def test_curvature_lies_between_convexity_and_smoothness(problem):
    generator = stream(4, Purpose.DATA)
    for _ in range(20):
        a, b = generator.standard_normal((2, 3)) * 3
        change = slopes(problem, a) - slopes(problem, b)
        along = (change @ (a - b)) / ((a - b) @ (a - b))
        assert (along >= problem.convexity - 1e-6).all()
        assert (np.linalg.norm(change, axis=1) <= problem.smoothness * np.linalg.norm(a - b) + 1e-6).all()


def test_more_spread_is_more_divergence():
    totals = [
        Quadratic.random(0, clients=5, dimension=3, spread=spread).constants(1).divergence for spread in (0.1, 1, 5)
    ]
    assert sum(totals[0]) < sum(totals[1]) < sum(totals[2])
    alike, unlike = (
        Logistic.random(0, samples=[300] * 4, dimension=3, spread=spread).constants(1).divergence for spread in (0.1, 3)
    )
    assert sum(unlike) > 3 * sum(alike)
