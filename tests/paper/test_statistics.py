"""Statistics of tables, with numbers worked out by hand."""

from math import inf, sqrt

import pytest

from efl.paper.results import latex, spread
from efl.paper.statistics import (
    Difference,
    clear_winner,
    difference,
    difference_text,
    student_probability,
    student_quantile,
)
from efl.paper.timing import Speed, Work, reached


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (100, 1.984)],
)
def test_quantiles_are_those_of_the_tables(degrees, quantile):
    assert student_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


def test_probabilities_where_they_have_a_closed_form():
    """Cauchy's for one degree; t/√(t² + 2) for two; for four that times 1 + 2/(t² + 4), with t/√(t² + 4)."""
    assert student_probability(sqrt(3), 1) == pytest.approx(2 / 3)
    assert student_probability(2.0, 2) == pytest.approx(2 / sqrt(6))
    assert student_probability(2.0, 4) == pytest.approx(2 / sqrt(8) * (1 + 2 / 8))


def test_a_paired_difference():
    """1, 2 and 3: mean 2, deviation 1, half the interval 4.3027/√3 = 2.4842. Seeds that one lacks do not count."""
    found = difference({0: 11.0, 1: 22.0, 2: 33.0, 3: 5.0}, {0: 10.0, 1: 20.0, 2: 30.0, 4: 5.0})
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2 - 2.48414, 2 + 2.48414), abs=1e-5)
    assert not found.clear


def test_pairing_takes_out_what_seeds_have_in_common():
    """The same gap of about 1 at levels far apart: 0.9, 1.0 and 1.1, so ±4.3027·0.1/√3 = ±0.2484."""
    ours, theirs = {0: 10.9, 1: 51.0, 2: 91.1}, {0: 10.0, 1: 50.0, 2: 90.0}
    found = difference(ours, theirs)
    assert (found.low, found.high) == pytest.approx((0.751586, 1.248414), abs=1e-6)
    assert found.clear
    assert clear_winner({"ours": ours, "theirs": theirs}) == "ours"


def test_one_seed_or_none_decides_nothing():
    assert difference({0: 2.0}, {0: 1.0}) == Difference(1.0, -inf, inf)
    assert difference({0: 2.0}, {1: 1.0}) is None
    assert clear_winner({"A": {0: 2.0}, "B": {0: 1.0}}) is None
    assert clear_winner({"A": {0: 2.0, 1: 2.0}}) is None


def test_the_best_is_in_bold_only_if_it_is_clearly_better_than_all_others():
    clear, close = {0: 0.80, 1: 0.81, 2: 0.82}, {0: 0.95, 1: 0.89, 2: 0.90}
    best = {0: 0.90, 1: 0.91, 2: 0.95}
    assert clear_winner({"best": best, "clear": clear}) == "best"
    assert clear_winner({"best": best, "clear": clear, "close": close}) is None


def test_texts():
    assert difference_text(Difference(0.0123, 0.002, 0.0226)) == "**+1.23** (+0.20 … +2.26)"
    assert difference_text(Difference(-0.0123, -0.03, 0.0054)) == "-1.23 (-3.00 … +0.54)"
    assert difference_text(Difference(0.01, -inf, inf)) == "+1.00"
    assert difference_text(None) == "–"
    runs = [{"summary": {"accuracy": value, "diverged": False}} for value in (0.5, 0.6, 0.7)]
    assert spread(runs, "accuracy") == "60.00 ± 10.00"
    assert spread(runs[:1], "accuracy") == "50.00"
    lines = latex(["", "a_b"], [["EFL", "**+1.23** (+0.20 … +2.26)"]], "95 %").splitlines()
    assert lines[1] == r"\caption{95 \%}"
    assert lines[4] == r" & a\_b \\"
    assert lines[6] == r"EFL & \textbf{+1.23} (+0.20 \dots{} +2.26) \\"


def test_what_it_takes_to_a_target_on_slow_links():
    """Ten clients, 5 MB up and 10 MB down each: 4 s at 10 Mbit/s and 1.6 s at 50; 10 × 20 steps of 10 ms: 2 s."""
    curve = [
        {"round": 4, "accuracy": 0.79, "sent_up": 1, "sent_down": 1},
        {"round": 9, "accuracy": 0.80, "sent_up": 50_000_000, "sent_down": 100_000_000},
        {"round": 19, "accuracy": 0.99, "sent_up": 90_000_000, "sent_down": 900_000_000},
    ]
    training = {"cohort": 10, "local_steps": 20}
    found = reached(curve, 0.8, training, 0.01)
    assert (found.rounds, found.bytes, found.seconds) == (10, 150_000_000, pytest.approx(7.6))
    assert reached(curve, 0.8, training, None).seconds is None
    assert reached(curve, 0.995, training, 0.01) is None


def test_how_long_it_will_take():
    """30,000 steps and 60 evaluations of 400 batches, each a quarter of a step: 36,000 steps of 0.1 s."""
    assert (
        Work(30_000, 60, 3, 1).said(Speed(0.1, 400.0), 2) == "3 runs and 1 search to go, about 30.0 min with 2 workers"
    )
