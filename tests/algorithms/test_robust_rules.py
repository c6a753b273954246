"""Robust rules: numbers by hand, on updates and through rounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from quadratics import Quadratics, Simulation

from efl import EFL, FedAvg, Transform, chain
from efl.algorithms import create
from efl.algorithms.components.admission import Increment, scaled, scaled_part
from efl.algorithms.pipeline import admitted
from efl.algorithms.state import RoundSettings, ServerState, Update
from efl.algorithms.transforms.robust import geometric_median, multi_krum, trimmed_mean
from efl.algorithms.transforms.robust_mixing import bucketed, clipped_around, mixed
from efl.wire import Dense, Field, Lattice, RankOneFisher, Ternary

RULES = ["coordinate_median", "trimmed_mean", "geometric_median", "multi_krum", "centred_clipping"]
FIVE = Quadratics([[1.0]] * 5, [[4.0], [4.0], [4.0], [4.0], [1e6]])


def rows(*values):
    return torch.tensor([[float(value)] for value in values])


def test_trimmed_mean_by_hand():
    assert trimmed_mean(rows(-90, 1, 2, 3, 900), 1).tolist() == [2.0]
    assert trimmed_mean(rows(5, 7), 4).tolist() == [6.0]  # something is always left


def test_geometric_median_by_hand():
    """Two of three in one point hold it, however far the third is."""
    found = geometric_median(torch.tensor([[1.0, 1.0], [1.0, 1.0], [1e3, -1e3]]), 50)
    assert found.tolist() == pytest.approx([1.0, 1.0], abs=1e-2)


def test_multi_krum_by_hand():
    """Of 0, 1, 2, 3 and 50 with one hostile, the last has the worst score; the mean of the others is 1.5."""
    assert multi_krum(rows(0, 1, 2, 3, 50), 1).tolist() == [1.5]


def test_mixing_by_hand():
    """With one of four hostile each counts as the mean of its three nearest."""
    assert mixed(rows(0, 1, 2, 9), 1).flatten().tolist() == [1.0, 1.0, 1.0, 4.0]


def test_bucketing_by_hand():
    assert bucketed(rows(1, 2, 3, 4, 9), np.array([4, 0, 1, 2, 3]), 2).flatten().tolist() == [5.0, 2.5, 2.5, 4.0, 5.0]


def test_clipping_around_a_centre_by_hand():
    """Distances 1, 3 and 8 from 2: the median is 3."""
    assert clipped_around(rows(3, 5, 10), torch.tensor([2.0]), None).flatten().tolist() == [3.0, 5.0, 5.0]


@pytest.mark.parametrize("rule", RULES)
def test_one_of_five_that_lies_does_not_steer(rule):
    """The honest go a quarter of the way to 4."""
    sim = Simulation(create("fedavg", transforms=[{"name": rule}]), FIVE, 0.25, 1).run()
    assert sim.w[0] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("mixing", ["nearest_neighbour_mixing", "bucketing"])
def test_mixing_comes_before_the_rule(mixing):
    """Bucketing leaves three buckets, of which at most one has the lie in it."""
    algorithm = create("fedavg", transforms=[{"name": "coordinate_median"}, {"name": mixing}])
    assert Simulation(algorithm, FIVE, 0.25, 1).run().w[0] == pytest.approx(1.0)


def test_centred_clipping_starts_from_the_last_outcome():
    sim = Simulation(create("fedavg", transforms=[{"name": "centred_clipping", "radius": 0.5}]), FIVE, 0.25, 1)
    assert sim.run().w == [0.5]
    assert sim.server.tensors["clipping_centre"].tolist() == [0.5]
    assert sim.run().w == pytest.approx(
        [0.5 + 0.8 * 0.875 + 0.2 * 1.0]
    )  # the honest mean 0.875 by now, the lie clipped


@pytest.mark.parametrize("rule", ["coordinate_median", "geometric_median"])
def test_the_memory_sees_what_the_rule_made(rule):
    """Else one that lies would ruin the model through what the server remembers."""
    ideal = Quadratics([[1.0] * 4] * 5, [[4.0] * 4] * 4 + [[1e6] * 4])
    algorithm = chain(EFL(elasticity=0.0, memory="on", drift="off", step_up=0.01, step_down=0.01), *named(rule))
    sim = Simulation(algorithm, ideal, 0.25, 1).run(2)
    assert float(sim.server.tensors["memory"].abs().max()) < 100


def named(rule):
    return create("fedavg", transforms=[{"name": rule}]).transforms


def test_scaled_payloads_are_scaled_changes():
    w = torch.tensor([1.0, 1.0, 1.0])
    layout = RoundSettings(0, 0.1, 1, 1, flat(3)).layout
    lattice = Lattice.of(layout, np.array([2, 0, -1], np.int32), 0.5)
    ternary = Ternary(layout, np.array([0, 2]), np.array([True, False]), np.float32([0.5]))
    for payload in (lattice, ternary, Dense(np.float32([2.0, 1.0, 0.5]))):
        whole, half = np.zeros((2, 3), np.float32)
        payload.add_to(whole, 1.0, w.numpy())
        scaled(payload, 0.5, w).add_to(half, 1.0, w.numpy())
        assert (half == whole / 2).all()
        assert not scaled(payload, 0.0, w).values.any()
    assert scaled(lattice, 1.0, w) is lattice


def test_scaled_fields_scale_what_they_guess_as_well():
    layout = flat(4)
    field = Field(
        layout, np.array([1]), np.float32([8.0]), np.float32([2.0]), RankOneFisher.of(np.ones(4, np.float32), layout)
    )
    half = scaled_part(field, 0.25, 0.5)
    assert (half.fisher.tolist(), half.displacement.tolist()) == ([2.0], [1.0])
    assert half.factored_fisher.dense() == pytest.approx(field.factored_fisher.dense() / 4)


def flat(n):
    from efl.wire import Context

    return Context.flat(n).layout


class Twice(Transform):
    """A rule of one's own by `reduce` alone."""

    @property
    def reduce(self):
        return lambda deltas, weights: 2 * torch.tensor(weights) @ deltas


def test_a_rule_of_ones_own_is_given_shares_that_sum_to_one():
    updates = [
        Update(client, 1, share, 1.0, 1.0, 1, {"update": Increment(np.float32([value]))})
        for client, share, value in ((0, 0.1, 4.0), (1, 0.3, 8.0))
    ]
    settings = RoundSettings(0, 0.1, 1, 1, flat(1))
    counted, _ = admitted(chain(FedAvg(), Twice()), ServerState(torch.zeros(1)), updates, settings)
    assert [one.delta.values.tolist() for one in counted] == [[14.0], [14.0]]
    assert [replace(one, counts_as=None) for one in counted] == updates
