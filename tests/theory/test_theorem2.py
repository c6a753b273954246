"""Theorem 2's bounds, by hand: clients on a line, F(w) = ½w² with n = 3 samples and F_a(w) = ½(w − 4)²."""

import numpy as np
import pytest

from efl.errors import UserError
from efl.paper.theorem2 import measure, random_federation
from efl.theory.problems import Quadratic
from efl.theory.theorem2 import arrival_bound, departure_bound, shift_bound


def line(own, others):
    return Quadratic(np.array([others, own]), np.ones((2, 1, 1)), np.array([[0.0], [4.0]]), np.zeros(2))


def test_a_departure():
    # The optimum moves from 1 to 0; D̂_a = ½·4² = 8; the bound is 8·1·1·8/16 = 4.
    values = {"smoothness": 1, "convexity": 1, "samples_of_client": 1}
    assert departure_bound(**values, samples_before=4, new_divergence=8) == 4
    assert arrival_bound(**values, samples_before=3, old_divergence=8) == 4
    shift = measure(line(own=1.0, others=3.0), 1)
    assert shift.squared == pytest.approx(1)
    assert (shift.leaving, shift.joining) == (pytest.approx(4), pytest.approx(4))
    assert shift.joining_as_printed == pytest.approx(8 * 0.5 * 3**2 / 16)


def test_the_printed_arrival_fails_for_a_newcomer_with_nine_tenths_of_the_samples():
    # The optimum moves from 0 to 3.6: 12.96. At the new one D̂_a = ½·0.4² = 0.08, so 8·0.81·0.08 = 0.5184 is too little;
    # at the old one D_a = 8, and 8·0.81·8 = 51.84 is enough.
    shift = measure(line(own=9.0, others=1.0), 1)
    assert shift.squared == pytest.approx(12.96)
    assert shift.joining_as_printed == pytest.approx(0.5184)
    assert shift.joining == pytest.approx(51.84)


def test_four_times_the_shift_still_fits():
    """μ‖w* − v‖ ≤ ‖∇F(v)‖ = n_a/n·‖∇F_a(v)‖ ≤ n_a/n·√(2L·D_a) at the optimum v without a: 2 would do for the 8."""
    for seed in range(12):
        shift = measure(*random_federation(seed, heaviest=10))
        assert 4 * shift.squared <= shift.leaving


def test_samples_must_make_sense():
    with pytest.raises(UserError, match="samples_of_client"):
        shift_bound(smoothness=1, convexity=1, samples_of_client=5, samples_with_client=4, divergence=1)
