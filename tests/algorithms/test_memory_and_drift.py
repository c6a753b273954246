"""Memory on both sides, and the drift that clients read off the model's movement."""

import numpy as np
import pytest
import torch
from quadratics import Quadratics, Simulation

from efl import EFL, FedAvg, Fleet, Scaffold, UserError, chain, train
from efl.algorithms.components.drift import GRADIENT, LAST_START
from efl.algorithms.components.shares import fade, remembered_clients
from efl.algorithms.compression.error_feedback import ErrorFeedback
from efl.algorithms.compression.lattice import StochasticLattice
from efl.algorithms.transforms.memory import REMEMBERED, Memory

A, B = [[1.0, 2.0], [3.0, 1.0], [2.0, 2.0]], [[4.0, 0.0], [0.0, 2.0], [-2.0, 6.0]]


def remembering():
    fine = StochasticLattice(step_up=1e-3, step_down=1e-3)
    algorithm = chain(FedAvg(), Memory(codec=fine), codec=ErrorFeedback(fine, resend=False, sides="server"))
    return Simulation(algorithm, Quadratics(A, B), eta=0.1, local_steps=2)


def test_memories_by_hand():
    """Client 0 moves from 0 by (1 − 0.9²)·4 and (1 − 0.8²)·0 in two steps: y = what it moved over ηE = 0.2."""
    sim = remembering().run()
    assert sim.state(REMEMBERED)[0] == pytest.approx([0.76 / 0.2, 0.0], abs=0.01)
    mean = torch.tensor(sim.state(REMEMBERED)).mean(0)
    assert torch.allclose(sim.server.tensors["memory"], mean, atol=1e-6)
    assert torch.allclose(torch.tensor(sim.w), 0.2 * mean, atol=1e-3)


def test_the_servers_memory_is_the_mean_of_the_clients_whoever_takes_part_and_whatever_is_lost():
    sim = remembering()
    for absent, lost in (
        ((), ()),
        ((0,), ()),
        ((1, 2), ()),
        ((), (2,)),
        ((0,), (2,)),
        ((), ()),
        ((1,), (0,)),
        ((), ()),
    ):
        sim.run(absent=absent, lost=lost)
    mean = torch.tensor(sim.state(REMEMBERED)).mean(0)
    assert torch.allclose(sim.server.tensors["memory"], mean, atol=1e-5)


def test_who_is_away_counts_with_what_is_remembered():
    """After client 2 has left, FedAvg goes where the others want; with a memory its last update still pulls."""
    forgetful = Simulation(FedAvg(), Quadratics(A, B), eta=0.1, local_steps=2).run(3).run(3, absent=[2])
    sim = remembering().run(3).run(3, absent=[2])
    optimum = Quadratics(A, B).optimum
    assert torch.dist(torch.tensor(sim.w), optimum) < torch.dist(torch.tensor(forgetful.w), optimum)


def test_noise_that_is_remembered_in_part_does_not_grow():
    """Uploads so coarse that their variance is several times what is meant: ω ≈ 5, remembered by 1/(1 + ω)."""
    torch.manual_seed(0)
    problem = Quadratics((torch.rand(6, 50) + 0.5).tolist(), torch.randn(6, 50).tolist())
    sim = Simulation(EFL(elasticity=0.0, step_up=12.0, step_down=1.0, drift="off"), problem, eta=0.05, local_steps=4)
    sizes = [torch.tensor(sim.run(10).state(REMEMBERED)).norm().item() for _ in range(20)]
    assert sizes[-1] < 3 * sizes[0]


def test_memories_fade_by_the_concentration_of_shares():
    assert fade(1) == 0.5
    assert fade(100) == 0.995
    assert fade(0) == 0.0


def test_few_clients_with_most_of_the_data_are_not_remembered():
    equal, unequal = np.full(40, 1 / 40), np.array([0.5] + [0.5 / 39] * 39)
    assert remembered_clients(equal, 10) == 40
    assert remembered_clients(equal, 1) == 0  # each would be remembered for 40 rounds, one of 40 in each
    assert remembered_clients(unequal, 10) == 0  # one would be remembered for 4 rounds, half of everything in each
    assert remembered_clients(unequal, 40) == 4
    assert remembered_clients(np.zeros(3), 2) == 0


def test_whole_models_cannot_be_remembered():
    with pytest.raises(UserError, match="whole models"):
        Simulation(chain(FedAvg(), Memory()), Quadratics(A, B), eta=0.1, local_steps=2).run()


# Drift


def drifting(elasticity=0.0):
    settings = {"density_up": 1.0, "density_down": 1.0, "memory": "off", "drift": "on"}
    algorithm = EFL(elasticity=elasticity, fisher="empirical", fisher_size="own", field="dense", **settings)
    return Simulation(algorithm, Quadratics(A, B), eta=0.05, local_steps=3)


def test_a_client_keeps_its_mean_gradient_and_where_it_started():
    sim = drifting().run()
    plain = Simulation(FedAvg(), Quadratics(A, B), eta=0.05, local_steps=3).run()
    assert sim.w == pytest.approx(plain.w)
    for client in range(3):
        gradient = -torch.tensor(plain.models[client]) / (0.05 * 3)
        assert sim.state(GRADIENT)[client] == pytest.approx(gradient.tolist(), rel=1e-5)
        assert sim.state(LAST_START)[client] == [0.0, 0.0]


def test_the_second_round_is_corrected_by_everybodys_step_less_ones_own():
    """By hand: M = −w_1/(ηE), d = γ(M − c); a client reports its displacement without the part that d made."""
    sim = drifting().run()
    w, own = torch.tensor(sim.w), torch.tensor(sim.state(GRADIENT))
    mean, faded = -w / (0.05 * 3), fade(1000)
    assert torch.allclose(mean, own.mean(0), atol=1e-5)  # all took part: the model moved by the mean gradient
    sim.run()
    for client in range(3):
        position, d = w.clone(), faded * (mean - own[client])
        for _ in range(3):
            position -= 0.05 * (torch.tensor(A[client]) * (position - torch.tensor(B[client])) + d)
        reported = position - w + 3 * 0.05 * d
        assert sim.models[client] == pytest.approx(position.tolist(), rel=1e-5)
        assert sim.state(GRADIENT)[client] == pytest.approx((reported / (-0.05 * 3)).tolist(), rel=1e-4)


def test_the_gradient_is_without_the_pull():
    """Under the elastic pull c is the mean gradient that would have led there: for constant gradients, exactly it."""
    flat = Quadratics([[1e-6, 1e-6]] * 3, [[1e6, -1e6], [2e6, 0.0], [0.0, 3e6]])  # gradients −1, 1, … everywhere
    settings = {"density_up": 1.0, "density_down": 1.0, "memory": "off", "drift": "on", "field": "dense"}
    for step in ("implicit", "explicit"):
        algorithm = EFL(elasticity=3e5, fisher="empirical", fisher_size="own", step=step, **settings)
        sim = Simulation(algorithm, flat, eta=0.1, local_steps=4).run(2)
        assert torch.tensor(sim.state(GRADIENT)).flatten().tolist() == pytest.approx([-1, 1, -2, 0, 0, -3], abs=2e-3)


def test_the_optimum_of_unlike_clients_is_a_fixed_point_only_with_the_correction():
    torch.manual_seed(3)
    problem = Quadratics((torch.rand(5, 6) * 4 + 0.2).tolist(), (3 * torch.randn(5, 6)).tolist())
    ends = {}
    for name, algorithm in {
        "fedavg": FedAvg(),
        "scaffold": Scaffold(),
        "efl": EFL(elasticity=0.0, density_up=1.0, density_down=1.0, memory="off", drift="on"),
    }.items():
        sim = Simulation(algorithm, problem, eta=0.05, local_steps=10).run(300)
        ends[name] = torch.dist(torch.tensor(sim.w), problem.optimum).item()
    assert ends["fedavg"] > 0.3
    assert ends["efl"] < 0.02 * ends["fedavg"]
    assert ends["scaffold"] < 0.02 * ends["fedavg"]


# Where clients return rarely


def test_memory_and_drift_are_for_clients_that_return():
    assert EFL().fitted(50, 10).memory == EFL().fitted(50, 10).drift == "on"
    assert (EFL().fitted(51, 10).memory, EFL().fitted(51, 10).drift) == ("on", "off")
    assert (EFL().fitted(200, 10).memory, EFL().fitted(201, 10).memory) == ("on", "off")
    assert EFL(memory="on").fitted(500, 10).memory == "on"
    assert EFL(density_up=0.01, density_down=0.01).fitted(10, 10).drift == "off"  # the first edition's form


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "vrlsgd", "fedgate", "stc"])
def test_incomplete_work_is_used_on_request(algorithm):
    from efl.algorithms import create

    fleet = Fleet(stragglers=0.9, inactive=0.0)
    settings = {"rounds": 30, "evaluate_every": 30, "evaluate_personalised_every": "never"}
    dropped = train("digits", "linear", create(algorithm), fleet, **settings).summary
    used = train("digits", "linear", create(algorithm, {"incomplete": "use"}), fleet, **settings).summary
    assert used["bytes_up"] > 2 * dropped["bytes_up"]
    assert used["final_mean_accuracy"] > dropped["final_mean_accuracy"] - 0.05
