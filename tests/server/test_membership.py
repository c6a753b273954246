import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efl.errors import UserError
from efl.fleet import Fleet
from efl.fleet.calendar import NO_DEPARTURE, Calendar
from efl.server.abandonment import Threshold
from efl.server.membership import ANSWERS, ASK_AGAIN, ENOUGH, MEMORY, Membership


def test_those_with_the_highest_numbers_arrive_in_order_and_named_ones_when_told():
    plan = Calendar.of([(9, 2), (5, (0,)), (3, 1)], [], clients=6, seed=0)
    assert plan.arrives.tolist() == [5, 0, 0, 3, 9, 9]
    assert plan.members(4).tolist() == [False, True, True, True, False, False]


def test_who_departs_was_there_and_departs_once():
    plan = Calendar.of([(50, 5)], [(10, 3), (60, (2,)), (70, 80, 4)], clients=12, seed=3)
    gone = plan.departs[plan.departs != NO_DEPARTURE]
    assert len(gone) == 8
    assert (gone == 10).sum() == 3
    assert plan.departs[2] == 60
    assert ((gone >= 70) & (gone <= 80)).sum() == 4
    assert (plan.arrives < plan.departs).all()


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(0, 40))
def test_random_rounds_lie_in_their_span_and_follow_the_seed(seed, first, width):
    def plan(seed):
        return Calendar.of([(first, first + width, 5)], [], clients=8, seed=seed).arrives

    late = plan(seed)[3:]
    assert ((late >= first) & (late <= first + width)).all()
    assert (np.diff(late) >= 0).all()
    assert (plan(seed) == plan(seed)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arrivals": [[5, 10]]}, "fleet.arrivals: 10 of 10 clients arrive later"),
        ({"arrivals": [[5, [10]]]}, "fleet.arrivals: there is no client 10; they are numbered 0 … 9"),
        ({"arrivals": [[5, [1]], [6, [1]]]}, "fleet.arrivals: client 1 arrives twice"),
        ({"arrivals": [[6, 5, 1]]}, "fleet.arrivals: rounds 6 … 5 are none"),
        ({"departures": [[5, [1, 1]]]}, "fleet.departures: client 1 departs twice"),
        ({"departures": [[5, 11]]}, "fleet.departures: nobody is left to depart in round 5"),
        (
            {"arrivals": [[8, [3]]], "departures": [[5, [3]]]},
            "client 3 departs in round 5, but arrives in round 8 only",
        ),
        ({"inactive": [[0, [0.1, 0.2]]]}, "fleet.inactive lists 2 probabilities for 10 clients"),
        ({"trace": "nowhere.csv"}, "nowhere.csv: no such file; .*an example's name: hospitals, phones"),
    ],
)
def test_what_does_not_fit_the_clients_is_named(settings, message):
    with pytest.raises(UserError, match=message):
        Fleet(**settings).check(10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arrivals": [[0, 1]]}, "arrivals: write .* rounds from 1 on"),
        ({"arrivals": [[5]]}, "arrivals"),
        ({"departures": [[5, 0]]}, "departures"),
        ({"abandon": True}, "abandon: write false, the inactivity above"),
        ({"abandon": 1.5}, "abandon"),
        ({"abandon": {"smoothness": 1}}, "abandon"),
        ({"on_departure": "forget"}, "on_departure"),
        ({"deadline": 10}, "deadline: needs a trace"),
        ({"selection": "available"}, "selection: needs a trace"),
        ({"trace": "phones", "deadline": 0}, "deadline"),
        ({"inactive": [[3, 0.1]]}, "inactive: .* should begin at round 0"),
        ({"inactive": [[0, 0.1], [5, 1.2]]}, "inactive"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        Fleet(**settings)


def test_inactivity_may_change_with_the_round():
    fleet = Fleet(stragglers=0, inactive=[[0, 0.0], [10, [1.0, 0.0]]])
    assert fleet.behave(0, 9, np.arange(2), 5).steps.tolist() == [5, 5]
    assert fleet.behave(0, 10, np.arange(2), 5).steps.tolist() == [0, 5]
    by_day = Fleet(stragglers=0, inactive=lambda client, round_: float((client + round_) % 2))
    assert by_day.behave(0, 4, np.arange(3), 5).steps.tolist() == [5, 0, 5]


def members(rule=None, clients=4, **events):
    plan = Calendar.of(events.get("arrivals", ()), events.get("departures", ()), clients, seed=0)
    return Membership(plan, rule, events.get("drop", False))


def test_a_departed_client_stays_in_the_objective_or_is_dropped_and_then_the_rate_restarts():
    kept, dropped = (members(departures=[(7, (1,))], drop=drop) for drop in (False, True))
    for membership in (kept, dropped):
        assert membership.begin(6) == []
        (change,) = membership.begin(7)
        assert (change.what, change.clients) == ("departed", [1])
        assert membership.present(7).tolist() == [True, False, True, True]
    assert kept.objective(7).all()
    assert dropped.objective(7).tolist() == [True, False, True, True]
    assert (kept.restarted[0], dropped.restarted[0]) == (0, 7)


def test_an_arrival_enters_the_objective_and_restarts_the_rate():
    membership = members(arrivals=[(7, 1)])
    assert membership.objective(6).tolist() == [True, True, True, False]
    assert membership.begin(7)[0].clients == [3]
    assert membership.objective(7).all()
    assert membership.restarted[0] == 7


def ask(membership, rounds, silent):
    """Ask whoever would be asked; returns what changed, by round."""
    log = {}
    for round_ in rounds:
        there = np.flatnonzero(membership.present(round_))
        asked = np.union1d(there, membership.asked_again(round_))
        if changes := membership.end(round_, asked, {c for c in asked.tolist() if c not in silent}):
            log[round_] = [(change.what, change.clients) for change in changes]
    return log


def test_a_silent_client_is_abandoned_once_there_is_enough_to_judge_by_and_taken_back_when_it_answers():
    membership = members(Threshold(0.5))
    assert ask(membership, range(100), silent={2}) == {ENOUGH - 1: [("abandoned", [2])]}
    assert membership.objective(100).tolist() == [True, True, False, True]
    assert membership.restarted[0] == ENOUGH
    log = ask(membership, range(100, 200), silent=set())
    ((round_, changes),) = log.items()
    assert changes == [("returned", [2])]
    assert round_ < 100 + ANSWERS * ASK_AGAIN
    assert membership.objective(200).all()
    assert membership.restarted[0] == round_ + 1
    again = ask(membership, range(200, 300), silent={2})
    ((late, _),) = again.items()
    assert 200 + ENOUGH <= late <= 200 + MEMORY


def test_occasional_silence_is_forgiven():
    membership = members(Threshold(0.5))
    for round_ in range(300):
        assert membership.end(round_, np.arange(4), set() if round_ % 3 == 0 else {0, 1, 2, 3}) == []


def test_somebody_always_stays():
    membership = members(Threshold(0.1))
    ask(membership, range(50), silent={0, 1, 2, 3})
    assert membership.present(50).sum() == 1


@pytest.mark.parametrize("drop", [False, True])
def test_neither_coming_back_nor_leaving_again_restarts_the_rate(drop):
    membership = members(departures=[(7, (1,))], drop=drop)
    membership.begin(7)
    restarted = int(membership.restarted[0])
    assert restarted == (7 if drop else 0)
    membership.calendar.departs[1] = NO_DEPARTURE
    (change,) = membership.begin(9)
    assert (change.what, change.clients) == ("returned", [1])
    assert membership.objective(9).all()
    membership.calendar.departs[1] = 11
    (change,) = membership.begin(11)
    assert change.what == "departed"
    assert membership.restarted[0] == restarted


def test_who_left_is_known_after_a_resume_and_older_checkpoints_are_read():
    membership, again, old = (members(departures=[(7, (1,))]) for _ in range(3))
    membership.begin(7)
    again.load_state_dict(membership.state_dict())
    assert again.left.tolist() == [0, 1, 0, 0]
    old.load_state_dict({name: value for name, value in membership.state_dict().items() if name != "left"})
    assert old.left.tolist() == [0, 0, 0, 0]
