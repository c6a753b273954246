import numpy as np
import pytest

from efl import Fleet, UserError
from efl.fleet.selection import by_share, inclusion_probabilities, uniform


def test_uniform_selection_asks_everyone_equally_often():
    shares = np.full(8, 1 / 8)
    hits = np.zeros(8)
    for round_ in range(4000):
        selection = Fleet().select(shares, 3, seed=0, round_=round_)
        assert len(set(selection.clients)) == 3
        assert (selection.probability == 3 / 8).all()
        hits[selection.clients] += 1
    assert np.allclose(hits / 4000, 3 / 8, atol=0.03)


def test_selection_by_share_has_exactly_the_probabilities_it_tells():
    shares = np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
    told = inclusion_probabilities(shares, 3)
    assert told[0] == 1.0  # 3 · 0.5 would be more than certain
    assert np.isclose(told.sum(), 3)
    assert np.allclose(told[1:], 2 * shares[1:] / 0.5)
    hits = np.zeros(6)
    rng = np.random.default_rng(0)
    for _ in range(20000):
        selection = by_share(shares, 3, rng)
        assert len(set(selection.clients.tolist())) == 3
        assert np.allclose(selection.probability, told[selection.clients])
        hits[selection.clients] += 1
    assert np.allclose(hits / 20000, told, atol=0.015)


@pytest.mark.parametrize("select", [uniform, by_share])
def test_asking_everyone_is_asking_everyone(select):
    shares = np.array([0.7, 0.1, 0.1, 0.05, 0.05])
    selection = select(shares, 5, np.random.default_rng(1))
    assert selection.clients.tolist() == [0, 1, 2, 3, 4]
    assert np.allclose(selection.probability, 1.0)


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
