"""Corollary 1, in numbers worked out by hand."""

import pytest

from efl.errors import UserError
from efl.theory import Constants, rough_threshold, whether_to_abandon

THREE = Constants(
    smoothness=2, convexity=1, gradient=3, noise=(1, 2, 0), divergence=(0, 1, 8), shares=(0.25, 0.25, 0.5)
)


def test_the_two_numbers_by_hand():
    # J = 32·2·(0.25·1 + 0.5·8)/1 = 272; kept: 0.5·272/2 = 68. Without client 2: shares ½, D = ½, γ = max(8, 128) = 128,
    # B = (½²·2·1 + ½²·2·4) + 2·3·2·(½·2·1) + (2 + 1/8)·2·9·2 + 2·2·9·(½·2 + ½·2) = 2.5 + 12 + 76.5 + 72 = 163,
    # C_10 = max(128²·9, 32²·10·163/4) = max(147456, 417280); time 10·2 + 128 = 148.
    verdict = whether_to_abandon(THREE, 2, 0.5, local_steps=2, round_=5, horizon=15)
    assert verdict.kept == pytest.approx(68)
    assert verdict.abandoned == pytest.approx(417280 / 148**2)
    assert verdict.abandon
    assert str(verdict) == "abandon: bound with it 68 > 19.1 without"


def test_a_known_distance_counts_instead_of_the_largest_possible():
    verdict = whether_to_abandon(THREE, 2, 0.01, local_steps=2, round_=15, horizon=15, distance=7.0)
    assert verdict.abandoned == pytest.approx(7)
    assert not verdict.abandon
    assert str(verdict).startswith("keep: bound with it 1.36 ≤ 7 without")


HORIZONS = (100, 1000, 10_000)


def test_more_rounds_to_go_make_the_corollary_less_patient():
    bounds = [whether_to_abandon(THREE, 2, 0.5, local_steps=2, round_=0, horizon=T).abandoned for T in HORIZONS]
    assert bounds == sorted(bounds, reverse=True)


def test_the_rough_threshold_by_hand_and_its_agreement_with_the_exact_one():
    # B = (1/16·2 + 1/16·2·4) + 2·3·2·(0.5 + 8) + 76.5 + 2·2·9·(0.5 + 0.5 + 1) = 251.125; C = 32²·B/4; J = 272.
    C = 32**2 * 251.125 / 4
    assert rough_threshold(THREE, local_steps=2, horizon=50) == pytest.approx(C / (272 * 50 * 2))
    # A client of hardly any share changes neither C nor γ: then y·J/E = f₁(T) at the rough threshold, for large T.
    small = Constants(
        smoothness=2, convexity=1, gradient=3, noise=(1, 1, 1), divergence=(1, 1, 1), shares=(0.5, 0.499999, 1e-6)
    )
    threshold = rough_threshold(small, local_steps=2, horizon=10**6)
    verdict = whether_to_abandon(small, 2, threshold, local_steps=2, round_=0, horizon=10**6)
    assert verdict.kept == pytest.approx(verdict.abandoned, rel=1e-3)


def test_more_local_steps_make_it_more_patient_by_their_drift_and_less_by_their_noise():
    drifting = [rough_threshold(THREE, local_steps=E, horizon=50) for E in (2, 4, 8)]
    assert drifting == sorted(drifting)
    still = Constants(smoothness=2, convexity=1, gradient=0, noise=(9, 9), divergence=(1e-6, 1e-6), shares=(0.5, 0.5))
    noisy = [rough_threshold(still, local_steps=E, horizon=50) for E in (2, 4)]
    assert noisy[1] == pytest.approx(noisy[0] / 2, rel=1e-3)


def test_where_clients_are_alike_absence_does_no_harm():
    alike = Constants(smoothness=2, convexity=1, gradient=3, noise=(1, 1), divergence=(0, 0), shares=(0.5, 0.5))
    assert rough_threshold(alike, local_steps=2, horizon=50) == float("inf")
    assert not whether_to_abandon(alike, 0, 0.99, local_steps=2, round_=0, horizon=10**4).abandon


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inactivity": 1.5}, "inactivity: should be a probability"),
        ({"round_": 16}, "between 0 and the horizon"),
        ({"client": 3}, "cannot leave a federation of 3"),
    ],
)
def test_what_makes_no_sense_is_refused(change, message):
    arguments = {"client": 2, "inactivity": 0.5, "local_steps": 2, "round_": 5, "horizon": 15} | change
    with pytest.raises(UserError, match=message):
        whether_to_abandon(THREE, **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shares": (0.5, 0.5)}, "one entry for each client"),
        ({"shares": (0.5, 0.5, 0.5)}, "add up to 1"),
        ({"convexity": 3}, "cannot exceed smoothness"),
        ({"noise": (1, -1, 0)}, "noise"),
    ],
)
def test_constants_check_themselves(change, message):
    values = {
        "smoothness": 2, "convexity": 1, "gradient": 3, "noise": (1, 2, 0), "divergence": (0, 1, 8),
        "shares": (0.25, 0.25, 0.5),
    }  # fmt: skip
    with pytest.raises(UserError, match=message):
        Constants(**(values | change))
