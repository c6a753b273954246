"""Corollary 1 at work on a convex problem whose constants are known: what it advises does end with the lower loss."""

import numpy as np

from efl.fleet.calendar import Calendar
from efl.server.abandonment import Corollary1
from efl.server.membership import PRESENT, Membership
from efl.theory import Participation, Theorem1
from efl.theory.problems import Quadratic
from efl.theory.simulate import simulate

E, SEEDS, DIMENSION, ODD = 2, 100, 4, 4
EVERYBODY = set(range(5))


def federation(distance):
    """Five clients with F_k = ½‖w − a_k‖²; one of them is ``distance`` away from the others."""
    centres = np.zeros((5, DIMENSION))
    centres[ODD, 0] = distance
    return Quadratic(np.full(5, 100.0), np.stack([np.eye(DIMENSION)] * 5), centres, np.full(5, 0.5))


def when_abandoned(problem, inactivity, rounds):
    """The round in which the membership abandons the odd client, from what it observes; None if never."""
    rule = Corollary1(problem.constants(radius=1.0), E, rounds)
    members = Membership(Calendar.of((), (), 5, seed=0), rule)
    rng = np.random.default_rng(0)
    for round_ in range(rounds):
        silent = {ODD} if rng.random() < inactivity else set()
        for change in members.end(round_, np.flatnonzero(members.present(round_)), EVERYBODY - silent):
            assert (change.what, change.clients) == ("abandoned", [ODD])
            assert "bound with it" in change.why
            return int(members.abandoned[ODD])
    assert members.abandoned[ODD] == PRESENT
    return None


def losses(problem, inactivity, rounds, at):
    """Mean F(w_T) − F* if the odd client stays, and if it is abandoned in round ``at``, each of its own objective."""
    constants = problem.constants(radius=1.0)
    absence = np.zeros(5)
    absence[ODD] = inactivity
    kept = Theorem1(constants, [Participation.inactive(problem.shares, E, absence)], distance=1.0)
    staying = simulate(problem, kept, rounds=rounds, seeds=SEEDS, start=problem.optimum).models
    rest = problem.without(ODD)
    gone = Theorem1(constants.without(ODD), [Participation.complete(rest.shares, E)], distance=1.0)
    going = simulate(rest, gone, rounds=rounds - at, seeds=SEEDS, start=staying[at], first_round=at).models
    return problem.excess(staying[-1]).mean(), rest.excess(going[-1]).mean()


def test_it_says_abandon_and_abandoning_ends_with_the_lower_loss():
    problem, rounds = federation(distance=3.0), 1000
    at = when_abandoned(problem, inactivity=0.9, rounds=rounds)
    assert at is not None
    kept, abandoned = losses(problem, 0.9, rounds, at)
    print(f"abandoned before round {at}: loss {abandoned:.2e}, kept {kept:.2e}")
    assert abandoned < 0.1 * kept


def test_it_says_keep_and_keeping_ends_with_the_lower_loss():
    """The client is like the others: its absence biases nothing, and going costs rounds and a fifth of the data."""
    problem, rounds = federation(distance=0.05), 800
    assert when_abandoned(problem, inactivity=0.3, rounds=rounds) is None
    kept, abandoned = losses(problem, 0.3, rounds, at=rounds // 2)
    print(f"kept: loss {kept:.2e}, abandoned half-way {abandoned:.2e}")
    assert kept < 0.8 * abandoned
