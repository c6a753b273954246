"""Privacy: one client more or less changes what is released by no more than the norm, whatever it sends."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from efl import EFL, EightBit, FedAvg, MajorityVote, Privacy, ServerMomentum, Transform, UserError, chain, create
from efl.algorithms import Clients, ServerState, Update, run_round
from efl.algorithms.fitting import fit
from efl.algorithms.pipeline import aggregate, initial_state
from efl.algorithms.state import UPDATE, RoundSettings
from efl.algorithms.transforms.privacy import NORM, clipped_sum
from efl.models import FlatModel
from efl.wire import Dense, Lattice, Layout

COHORT = 3
NOISY = Privacy(noise_multiplier=0.7, norm=0.5)
FORMS = {
    "fedavg": lambda privacy: chain(FedAvg(), privacy),
    "lattice": lambda privacy: chain(EFL(step_up=6.0, step_down=1.0), privacy),  # decoded twice as long as meant
    "ternary": lambda privacy: chain(create("efl:2021"), privacy),
    "bytes": lambda privacy: chain(FedAvg(), privacy, codec=EightBit()),
    "signs": lambda privacy: chain(FedAvg(), privacy, codec=MajorityVote()),
    "momentum": lambda privacy: chain(FedAvg(), ServerMomentum(), privacy),
}


@pytest.fixture(scope="module")
def clients(tiny):
    model = FlatModel(nn.Sequential(nn.Linear(4, 3)))
    return Clients.of(tiny, model, batch_size=5)


def sent(values, client=0, samples=1):
    return Update(client, samples, 0.5, 1.0, 1.0, 1, {UPDATE: values})


def round_of(n, **changed):
    return RoundSettings(0, 0.1, 2, 5, Layout.flat(n), cohort=COHORT, seed=7, **changed)


@settings(max_examples=40, deadline=None)
@given(
    form=st.sampled_from(sorted(FORMS)),
    left_out=st.integers(0, 5),
    eta=st.sampled_from([1e-4, 0.1, 3.0]),
    norm=st.sampled_from([1e-3, 0.3, 50.0]),
    rounds=st.integers(0, 2),
    quantile=st.sampled_from([None, 0.5]),
)
def test_a_client_more_or_less_changes_what_is_released_by_at_most_the_norm(
    clients, form, left_out, eta, norm, rounds, quantile
):
    """In real rounds, residuals and all: the same noise with and without it leaves the bare difference."""
    privacy = Privacy(noise_multiplier=0.7, norm=norm, quantile=quantile)
    algorithm = fit(FORMS[form](privacy), 6, COHORT)
    server, everybody = initial_state(algorithm, torch.zeros(15)), clients
    for round_ in range(rounds):
        played = run_round(algorithm, server, everybody, replace(clients.settings, round=round_, cohort=COHORT))
        server, everybody = played.server, played.clients
    now = replace(clients.settings, round=rounds, eta=eta, cohort=COHORT, seed=3)
    able = dict.fromkeys(range(6), 4)
    whole = run_round(algorithm, server, everybody, now, steps=able).updates
    rest = run_round(algorithm, server, everybody, now, steps={k: s for k, s in able.items() if k != left_out}).updates
    for one, same in zip([u for u in whole if u.client != left_out], rest, strict=True):
        assert np.array_equal(one.delta.values, same.delta.values)  # others do not notice
    bound = privacy.norm_of(server)
    (total, bits), (less, fewer) = (clipped_sum(updates, server.w, bound) for updates in (whole, rest))
    assert np.linalg.norm(total - less) <= bound * (1 + 1e-9)
    assert abs(bits - fewer) <= 0.5
    with_it, without = (privacy.released(updates, server, now)[0].double() for updates in (whole, rest))
    assert float((with_it - without).norm()) * COHORT <= bound * (1 + 1e-4) + 1e-5


@pytest.mark.parametrize(
    "forged",
    [
        Dense(np.full(4, 1e30, np.float32)),
        Lattice(Layout.flat(4), np.arange(4), np.full(4, 2**24, np.int32), 1e25),
        Dense(np.full(4, np.inf, np.float32)),
    ],
    ids=["model", "lattice", "infinite"],
)
def test_whatever_is_sent_counts_no_more_than_the_norm(forged):
    w = torch.full((4,), 0.25)
    with np.errstate(all="ignore"):
        assert np.linalg.norm(clipped_sum([sent(forged)], w, 0.5)[0]) <= 0.5


def test_updates_within_the_norm_are_added_as_they_are():
    w = torch.tensor([1.0, 2.0])
    total, _ = clipped_sum([sent(Dense(np.float32([1.25, 2.0]))), sent(Dense(np.float32([1.0, 2.25])))], w, 0.5)
    assert total.tolist() == [0.25, 0.25]


def test_weights_depend_on_nothing_a_client_says():
    one, other = Dense(np.float32([0.1, 0.2])), Dense(np.float32([-0.2, 0.1]))
    server, now = ServerState(torch.zeros(2)), round_of(2)
    usual = NOISY.released([sent(one), sent(other, 1)], server, now)[0]
    claims = replace(sent(other, 1, samples=2**40), share=0.999, response_rate=0.01, steps=1)
    assert torch.equal(NOISY.released([sent(one), claims], server, now)[0], usual)


def test_noise_has_the_size_it_is_accounted_for_by_and_is_drawn_by_round_and_seed():
    n = 40_000
    server, now = ServerState(torch.zeros(n)), round_of(n)
    noise = NOISY.released([], server, now)[0]
    assert float(noise.std()) == pytest.approx(0.7 * 0.5 / COHORT, rel=0.02)
    assert abs(float(noise.mean())) < 4 * 0.7 * 0.5 / COHORT / n**0.5
    assert torch.equal(NOISY.released([], server, now)[0], noise)
    for other in (replace(now, round=1), replace(now, seed=8)):
        assert abs(float(torch.corrcoef(torch.stack([noise, NOISY.released([], server, other)[0]]))[0, 1])) < 0.03


def test_a_round_without_updates_releases_noise_all_the_same():
    algorithm = fit(chain(FedAvg(), NOISY), 6, COHORT)
    state, payload = aggregate(algorithm, initial_state(algorithm, torch.zeros(9)), [], round_of(9))
    assert payload is not None
    assert state.w.count_nonzero() == 9


def test_the_norm_follows_its_quantile_and_both_sums_together_cost_one():
    privacy = Privacy(noise_multiplier=0.8, norm=10.0, quantile=0.5, bits_noise=2.0)
    assert privacy.update_noise(100) ** -2 + 4.0**-2 == pytest.approx(0.8**-2)
    server = ServerState(torch.zeros(1), privacy.init(torch.zeros(1)))
    updates = [sent(Dense(np.float32([length])), k) for k, length in enumerate(np.linspace(0.5, 1.5, 100))]
    for round_ in range(60):
        _, server = privacy.released(updates, server, RoundSettings(round_, 0.1, 1, 1, Layout.flat(1), cohort=100))
    assert float(server.tensors[NORM]) == pytest.approx(1.0, abs=0.1)


def test_efl_leaves_off_what_would_tell_of_clients_and_keeps_what_was_asked_for():
    private = fit(chain(EFL(step_up=3.0), NOISY), 6, COHORT)
    assert (private.elasticity, private.memory, private.drift, private.answer_rates) == (0.0, "off", "off", False)
    assert private.step_up == 3.0
    assert not private.parts
    assert private.budget is None
    assert fit(private, 6, COHORT) == private


class Curious(Transform):
    """Looks at the updates behind privacy's back."""

    def on_server(self, delta, updates, server, settings):
        return delta * len(updates), server


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (lambda: chain(EFL(memory="on"), NOISY), "algorithm.memory = 'on'"),
        (lambda: chain(EFL(drift="on"), NOISY), "algorithm.drift = 'on'"),
        (lambda: chain(FedAvg(), NOISY, ServerMomentum()), "last transformation"),
        (lambda: chain(FedAvg(), create("fedavg", transforms=[{"name": "coordinate_median"}]).transforms[0], NOISY),
         "leave CoordinateMedian out"),
        (lambda: chain(FedAvg(), Curious(), NOISY), "single updates"),
        (lambda: chain(create("scaffold"), NOISY), "Scaffold uploads"),
        (lambda: chain(create("fednova"), NOISY), "fixed weights"),
        (lambda: chain(create("fedamp"), NOISY), "FedAMP"),
        (lambda: chain(create("feddyn"), NOISY), "single updates"),
    ],
)  # fmt: skip
def test_what_would_tell_of_single_clients_is_refused_in_one_line(algorithm, words):
    with pytest.raises(UserError, match=words) as refused:
        fit(algorithm(), 6, COHORT)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("arguments", [{}, {"epsilon": 0.0}, {"epsilon": 1.0, "delta": 1.0}])
def test_privacy_without_a_meaning_is_refused(arguments):
    with pytest.raises(UserError):
        Privacy(**arguments)


def test_rounds_by_themselves_need_to_say_noise_and_cohort():
    server = ServerState(torch.zeros(2))
    with pytest.raises(UserError, match="noise_multiplier"):
        Privacy(epsilon=8.0).released([], server, round_of(2))
    with pytest.raises(UserError, match=r"settings\.cohort"):
        NOISY.released([], server, replace(round_of(2), cohort=0))
