"""Cohorts are drawn from whoever is available, with the probabilities that are told."""

import numpy as np
import pytest

from efl.rng import Purpose, stream
from efl.server.client_table import ClientTable
from efl.server.sampling import SAMPLERS, UniformSampler, by_share, inclusion_probabilities


def test_uniform_sampling_draws_everyone_equally_often():
    table, everyone = ClientTable.of(np.ones(8, dtype=np.int64)), np.ones(8, dtype=bool)
    hits = np.zeros(8)
    for round_ in range(4000):
        cohort = UniformSampler().sample(table, everyone, 3, stream(0, Purpose.SELECTION, round_))
        assert len(set(cohort.clients)) == 3
        assert (cohort.probability == 3 / 8).all()
        hits[cohort.clients] += 1
    assert np.allclose(hits / 4000, 3 / 8, atol=0.03)


def test_sampling_by_share_has_exactly_the_probabilities_it_tells():
    shares = np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
    told = inclusion_probabilities(shares, 3)
    assert told[0] == 1.0  # 3 · 0.5 would be more than certain
    assert np.isclose(told.sum(), 3)
    assert np.allclose(told[1:], 2 * shares[1:] / 0.5)
    hits = np.zeros(6)
    rng = np.random.default_rng(0)
    for _ in range(20000):
        cohort = by_share(shares, 3, rng)
        assert len(set(cohort.clients.tolist())) == 3
        assert np.allclose(cohort.probability, told[cohort.clients])
        hits[cohort.clients] += 1
    assert np.allclose(hits / 20000, told, atol=0.015)


@pytest.mark.parametrize("name", ["uniform", "share"])
def test_sampling_everyone_is_sampling_everyone(name):
    table = ClientTable.of(np.array([14, 2, 2, 1, 1]))
    cohort = SAMPLERS[name].sample(table, np.ones(5, dtype=bool), 5, np.random.default_rng(1))
    assert cohort.clients.tolist() == [0, 1, 2, 3, 4]
    assert np.allclose(cohort.probability, 1.0)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "poisson"])
def test_only_available_clients_are_sampled(name):
    table, available = ClientTable.of(np.ones(10, dtype=np.int64)), np.arange(10) < 4

    def sampled(cohort, among=available):
        return SAMPLERS[name].sample(table, among, cohort, np.random.default_rng(0))

    drawn = sampled(2)
    assert set(drawn.clients.tolist()) <= {0, 1, 2, 3}
    assert (drawn.probability == 2 / 4).all()
    assert sampled(8).clients.tolist() == [0, 1, 2, 3]
    assert len(sampled(8, np.zeros(10, dtype=bool)).clients) == 0


def test_a_client_that_is_rarely_reachable_counts_as_rarely_sampled():
    table = ClientTable.of(np.ones(4, dtype=np.int64))
    table.rounds[:], table.available[:] = 1000, [1000, 500, 250, 1000]
    drawn = SAMPLERS["available"].sample(table, np.ones(4, dtype=bool), 2, np.random.default_rng(0))
    expected = 0.5 * np.array([1, 0.5, 0.25, 1])
    assert np.allclose(drawn.probability, expected[drawn.clients], atol=0.01)


def test_a_cohort_is_joined_by_clients_that_are_probed():
    table = ClientTable.of(np.ones(4, dtype=np.int64))
    drawn = SAMPLERS["uniform"].sample(table, np.arange(4) != 1, 2, np.random.default_rng(0)).joined_by(np.array([1]))
    assert drawn.clients.tolist() == sorted(drawn.clients.tolist())
    assert drawn.probability[drawn.clients == 1] == 1.0
