import numpy as np
import pytest

from efl import Fleet, UserError


def behaviours(fleet, rounds=3000, clients=4, local_steps=10):
    return np.stack([fleet.behave(0, r, np.arange(clients), local_steps).steps for r in range(rounds)])


def test_stragglers_do_a_uniform_number_of_steps_below_e():
    steps = behaviours(Fleet(stragglers=0.4, inactive=0.0))
    assert np.isclose((steps < 10).mean(), 0.4, atol=0.02)
    shares = np.bincount(steps[steps < 10], minlength=10) / (steps < 10).sum()
    assert np.allclose(shares, 0.1, atol=0.02)


def test_inactivity_may_differ_by_client():
    steps = behaviours(Fleet(stragglers=0.0, inactive=(0.0, 0.2, 0.5, 1.0)))
    assert np.allclose((steps == 0).mean(0), [0.0, 0.2, 0.5, 1.0], atol=0.03)


@pytest.mark.parametrize(
    ("distribution", "check"),
    [
        ("constant:3", lambda s: (s == 3).all()),
        ("constant:99", lambda s: (s == 10).all()),
        ("beta:5,1", lambda s: s.mean() > 7 and s.max() <= 10),
        (lambda rng, local_steps: local_steps // 2, lambda s: (s == 5).all()),
    ],
)
def test_any_distribution_of_steps(distribution, check):
    assert check(behaviours(Fleet(stragglers=1.0, inactive=0.0, straggler_steps=distribution), rounds=200))


def test_behaviour_depends_on_seed_round_and_client_only():
    fleet = Fleet(stragglers=0.5, inactive=0.2, lost=0.3)
    everyone = fleet.behave(1, 5, np.arange(10), 20)
    some = fleet.behave(1, 5, np.array([7, 2]), 20)
    assert some.steps.tolist() == everyone.steps[[7, 2]].tolist()
    assert some.lost.tolist() == everyone.lost[[7, 2]].tolist()
    assert behaviours(fleet, 50).tolist() != behaviours(Fleet(stragglers=0.5, inactive=0.25), 50).tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stragglers": 1.5}, "stragglers"),
        ({"inactive": -0.1}, "inactive"),
        ({"inactive": (0.1, 2.0)}, "inactive"),
        ({"selection": "nobody"}, "selection"),
        ({"straggler_steps": "sometimes"}, "straggler_steps"),
        ({"straggler_steps": "beta:0,1"}, "straggler_steps"),
        ({"lost": float("nan")}, "lost"),
    ],
)
def test_impossible_fleets_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        Fleet(**settings)


def test_a_list_of_probabilities_must_fit_the_clients():
    with pytest.raises(UserError, match="3 probabilities for 5 clients"):
        Fleet(inactive=(0.1, 0.2, 0.3)).check(5)


def test_without_settings_the_fleet_is_ideal():
    assert (behaviours(Fleet()) == 10).all()
