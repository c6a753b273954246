"""Theorem 1's formulas, in numbers worked out by hand."""

import numpy as np
import pytest

from efl.errors import UserError
from efl.theory import Constants, Participation, Theorem1, learning_rate
from efl.theory.theorem1 import expected_B, offset

PAIR = Constants(smoothness=4, convexity=2, gradient=3, noise=(1, 2), divergence=(0.5, 2), shares=(0.75, 0.25))


def test_learning_rate():
    assert learning_rate(round_=9, local_steps=5, convexity=2, gamma=30, work=4) == pytest.approx(80 / (2 * 80 * 4))


def test_offset_takes_the_larger_of_drift_and_curvature():
    assert offset(local_steps=4, convexity=2, smoothness=4, cap=1, least_work=2) == 32 * 4 * 2 * 2 / 2
    assert offset(local_steps=100, convexity=1, smoothness=1, cap=1, least_work=50) == 4 * 100**2 / 50


def test_moments_of_incomplete_work():
    # E = 2, s is 1 or 2, weights 2p and p: E[ps] = ½(2p + 2p) = 2p, E[p²s] = ½(4p² + 2p²) = 3p².
    fleet = Participation.incomplete([0.75, 0.25], local_steps=2)
    assert fleet.work.tolist() == [1.5, 0.5]
    assert fleet.squared_work.tolist() == [3 * 0.75**2, 3 * 0.25**2]
    assert (fleet.cap, fleet.total_work, fleet.is_unbiased) == (2, 2, True)


def test_moments_of_inactive_clients_with_and_without_the_correction():
    plain = Participation.inactive([0.75, 0.25], 2, [0.0, 0.5])
    assert plain.work.tolist() == [1.5, 0.25]
    assert (plain.cap, plain.is_unbiased) == (1, False)
    corrected = Participation.inactive([0.75, 0.25], 2, [0.0, 0.5], corrected=True)
    assert corrected.work.tolist() == [1.5, 0.5]
    assert corrected.squared_work.tolist() == [0.75**2 * 2, 0.5**2 * 2 * 0.5]
    assert (corrected.cap, corrected.is_unbiased) == (2, True)


def test_a_client_that_is_never_there_cannot_be_corrected_for():
    fleet = Participation.inactive([0.75, 0.25], 2, [0.0, 1.0], corrected=True)
    assert fleet.work.tolist() == [1.5, 0.0]
    assert not fleet.is_unbiased


def test_B_of_a_complete_round():
    # E = 2, θ = 1; Σ(p²·2)σ² = 1.125·1 + 0.125·4 = 1.625; 2·3·4·(1.5·½ + ½·2) = 42;
    # (2 + 2/16)·2·9·2 = 76.5; 2·2·9·(1.125/0.75 + 0.125/0.25) = 72.
    fleet = Participation.complete(PAIR.shares, 2)
    assert expected_B(PAIR, fleet, cap=1) == pytest.approx(1.625 + 42 + 76.5 + 72)


def test_B_grows_by_the_positive_part_once_weights_can_exceed_two():
    # E = 4 and weights up to 4p: θ = 4, so drift counts 1 + 4·(4 − 2) = 9 times.
    fleet = Participation.incomplete(PAIR.shares, 4)
    drift = (2 + 2 / (2 * 5 * 4)) * 4 * 3 * 9 * 4
    second = np.mean([16, 8, 16 / 3, 4])  # E[p²s]/p² = mean of 16/s² · s
    noise = second * (0.75**2 * 1 + 0.25**2 * 4)
    unlike = 2 * (2 + 4) * 4 * (3 * 0.5 + 1 * 2)
    uneven = 2 * 4 * 9 * second * (0.75 + 0.25)
    assert expected_B(PAIR, fleet, cap=4) == pytest.approx(noise + unlike + 9 * drift + uneven)


def test_the_bound_of_an_unbiased_fleet():
    theorem = Theorem1(PAIR, [Participation.complete(PAIR.shares, 2)], distance=4)
    # γ = max(8, 32·2·2·2/2)= 128; J = 32·2·(0.75·½ + 0.25·2)/2 = 28; a round adds (16·2/2)²·192.125/2² = 12296.
    assert theorem.gamma == 128
    assert round(theorem.J, 9) == 28
    assert theorem.C(1) == 128**2 * 4
    assert theorem.C(10) == pytest.approx(122960)
    assert theorem.H(10) == 0
    assert theorem.bound(10) == pytest.approx(122960 / 148**2)
    assert theorem.bounds(10)[[0, 10]].tolist() == pytest.approx([4, theorem.bound(10)])
    assert theorem.learning_rate(0) == pytest.approx(32 / (2 * 130 * 2))


def test_H_counts_the_rounds_in_which_clients_take_part_unequally():
    complete = Participation.complete(PAIR.shares, 2)
    departed = Participation.inactive(PAIR.shares, 2, [0, 1])
    theorem = Theorem1(PAIR, [complete] * 3 + [departed], distance=0)
    assert [theorem.H(rounds) for rounds in (0, 3, 4, 10)] == [0, 0, 1, 7]
    # J is that of the worse round, with both clients: the first alone would give 32·2·½/2 = 16.
    assert round(theorem.J, 9) == 28
    assert theorem.gamma == pytest.approx(max(16, 256) / 1.5)
    assert theorem.bound(10) == pytest.approx(theorem.C(10) / (20 + theorem.gamma) ** 2 + 7 * 28 / (20 + theorem.gamma))
    assert theorem.learning_rate(5) == pytest.approx(32 / (2 * (12 + theorem.gamma) * 1.5))


def test_an_unequal_fleet_never_gets_below_J_over_E():
    theorem = Theorem1(PAIR, [Participation.inactive(PAIR.shares, 2, [0, 0.5])], distance=1)
    bounds = theorem.bounds(100_000)
    assert bounds[-1] > theorem.J / 2
    assert bounds[-1] == pytest.approx(theorem.J / 2, rel=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Theorem1(PAIR, [], 1), "at least one round"),
        (lambda: Theorem1(PAIR, [Participation.inactive(PAIR.shares, 2, [1, 1])], 1), "no client ever does a step"),
        (lambda: Participation(np.ones(2), np.ones((2, 3)), np.ones((2, 3))), "add up to 1"),
        (lambda: Participation(np.ones(2), np.ones((3, 3)) / 3, np.ones((3, 3))), "a row for each client"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
