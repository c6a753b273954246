"""Where clients do not reply, more are asked."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from grids import served

from efl.flower.oversampling import Oversampler
from efl.server.client_table import ClientTable
from efl.server.sampling import SAMPLERS


def table(requests, replies):
    found = ClientTable.of(np.full(len(requests), 10))
    found.requests[:], found.replies[:] = requests, replies
    return found


@pytest.mark.parametrize("selection", ["uniform", "share"])
def test_where_everybody_replies_cohorts_are_those_of_the_simulation(selection):
    known, everybody = table([7, 3, 9, 1, 0, 4], [7, 3, 9, 1, 0, 4]), np.ones(6, dtype=bool)
    for seed in range(20):
        expected, found = (
            sampler.sample(known, everybody, 3, np.random.default_rng(seed))
            for sampler in (SAMPLERS[selection], Oversampler(SAMPLERS[selection]))
        )
        assert found.clients.tolist() == expected.clients.tolist()
        assert found.probability.tolist() == expected.probability.tolist()


def test_as_many_more_are_asked_as_are_lost():
    known = table([1000] * 20, [500] * 20)
    found = Oversampler(SAMPLERS["uniform"]).sample(known, np.ones(20, dtype=bool), 5, np.random.default_rng(0))
    assert len(found.clients) == 10
    assert found.probability.tolist() == [0.5] * 10  # so that weights stay right


def test_those_who_left_do_not_matter_and_there_is_an_end_to_it():
    known, sampler = table([1000] * 20, [1000] * 10 + [0] * 10), Oversampler(SAMPLERS["uniform"])
    present = np.arange(20) < 10
    assert len(sampler.sample(known, present, 5, np.random.default_rng(0)).clients) == 5
    assert len(sampler.sample(known, ~present, 2, np.random.default_rng(0)).clients) == 6
    assert len(sampler.sample(known, ~present, 5, np.random.default_rng(0)).clients) == 10
    assert not len(sampler.sample(known, np.zeros(20, dtype=bool), 5, np.random.default_rng(0)).clients)


def test_a_deployment_asks_a_third_client_where_one_of_four_never_replies_well(tmp_path):
    config = {"training.rounds": 12, "training.cohort": 2, "network.wait_for": 4}
    run, grid, _ = served(tmp_path, config)
    grid.spoil = lambda node, message, reply: (
        None if node.info.node_id == 101 and message.metadata.message_type == "train" else reply
    )
    history = run.execute().history
    assert {len(record["clients"]) for record in history[:1]} == {2}
    assert {len(record["clients"]) for record in history[-4:]} == {3}
