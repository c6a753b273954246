"""What each rival is for: where averaging stops short, whose own models are better, what is the same as what."""

from functools import cache

import numpy as np
import pytest
import torch
from quadratics import Quadratics, Simulation

from efl import EFL, FedAvg, Fleet, train
from efl.algorithms import (
    APFL,
    STC,
    VRLSGD,
    CAFe,
    Ditto,
    FedAMP,
    FedCurv,
    FedDyn,
    FedGATE,
    FedNova,
    Mime,
    Scaffold,
    Scallion,
    Uncompressed,
    chain,
)

COMPLETE = Fleet(stragglers=0.0, inactive=0.0)
MANY = Quadratics(
    [[1.0, 2.0, 0.5], [2.0, 1.0, 1.0], [0.5, 0.5, 3.0], [1.0, 3.0, 0.25]],
    [[8.0, 4.0, -3.0], [0.0, 16.0, 2.0], [-5.0, 1.0, 7.0], [3.0, 3.0, 3.0]],
)


CORRECTED = [Scaffold(), VRLSGD(), FedGATE(compression="byte"), FedDyn(strength=1.0), Scallion()]


@cache
def settled(algorithm, rounds=150):
    return Simulation(algorithm, MANY, eta=0.05, local_steps=5).run(rounds)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedNova(), Mime(correction=False)])
def test_averaging_stops_short_of_the_optimum(algorithm):
    assert torch.dist(torch.tensor(settled(algorithm).w), MANY.optimum) > 0.02


@pytest.mark.parametrize(
    "algorithm",
    [
        Scaffold(),
        Scaffold(control="start"),
        FedGATE(),
        FedGATE(server_rate=1.5),
        FedGATE(compression="byte"),
        VRLSGD(),
        FedDyn(strength=1.0),
        Scallion(),
        Mime(),
        Mime(momentum=0.0),
    ],
    ids=str,
)
def test_corrected_steps_reach_the_optimum(algorithm):
    assert torch.dist(torch.tensor(settled(algorithm).w), MANY.optimum) < 1e-4


@pytest.mark.parametrize("algorithm", CORRECTED, ids=str)
def test_they_reach_it_though_replies_are_lost(algorithm):
    sim = Simulation(algorithm, MANY, eta=0.05, local_steps=5)
    for round_ in range(50):
        sim.run(lost=[round_ % 4] if round_ % 3 == 0 else [])
    sim.run(150)
    assert torch.dist(torch.tensor(sim.w), MANY.optimum) < 1e-3


@pytest.mark.parametrize("algorithm", CORRECTED, ids=str)
def test_they_reach_it_though_only_half_of_the_clients_take_part(algorithm):
    sim, rng = Simulation(algorithm, MANY, eta=0.02, local_steps=5), np.random.default_rng(0)
    for _ in range(600):
        sim.run(absent=rng.choice(4, 2, replace=False).tolist())
    assert torch.dist(torch.tensor(sim.w), MANY.optimum) < 1e-3


@pytest.mark.parametrize("algorithm", [APFL(), APFL(adaptive=False), Ditto(), FedAMP()], ids=str)
def test_every_client_has_a_better_model_of_its_own(algorithm):
    sim = settled(algorithm)
    own = MANY.losses(torch.stack([sim.own[client] for client in range(MANY.clients)]))
    assert (own < MANY.losses(torch.tensor(sim.w))).all()
    if algorithm != APFL():  # and better than a few local steps would make the global one
        plain = settled(FedAvg())
        tuned = MANY.losses(torch.stack([plain.own[client] for client in range(MANY.clients)]))
        assert (own < tuned).all()


def test_stc_with_density_1_is_fedavg_bit_for_bit(digits):
    fleet = Fleet(stragglers=0.3, inactive=0.1, lost=0.1)
    stc, fedavg = (
        train(digits, algorithm=algorithm, fleet=fleet, rounds=6, cohort=6, local_steps=4, evaluate_own_every="never")
        for algorithm in (STC(density_up=1.0, density_down=1.0), FedAvg())
    )
    assert stc.summary["model_sha256"] == fedavg.summary["model_sha256"]
    assert stc.summary["bytes"] == fedavg.summary["bytes"]


def test_fedcurv_is_efl_without_compression_and_reweighting(digits):
    """With the client's own part left in, as EFL does, and λ halved; the same to rounding, for EFL takes two steps."""
    efl = EFL(
        elasticity=0.5,
        density_up=1.0,
        density_down=1.0,
        weighting="A",
        step="explicit",
        fisher="empirical",
        participation="self-normalised",
        answer_rates=False,
    )
    vectors = []
    for algorithm in (efl, FedCurv(curvature=0.25, own="include")):
        result = train(
            digits, "linear", algorithm, COMPLETE, rounds=6, cohort=6, local_steps=4, evaluate_own_every="never"
        )
        vectors.append(torch.cat([p.detach().flatten() for p in result.model.parameters()]))
    assert torch.allclose(*vectors, atol=1e-6)
    plain = train(digits, "linear", FedAvg(), COMPLETE, rounds=6, cohort=6, local_steps=4, evaluate_own_every="never")
    assert torch.dist(vectors[0], torch.cat([p.detach().flatten() for p in plain.model.parameters()])) > 1e-3


def test_scallion_without_compression_is_scaffold():
    plain = chain(Scallion(gain=1.0), codec=Uncompressed())
    scallion, scaffold = (Simulation(one, MANY, eta=0.05, local_steps=5).run(20) for one in (plain, Scaffold()))
    assert scallion.w == pytest.approx(scaffold.w, abs=1e-5)
    assert torch.allclose(torch.tensor(scallion.state("control")), torch.tensor(scaffold.state("control")), atol=1e-4)


def test_scallions_server_knows_the_mean_of_what_clients_keep():
    sim = Simulation(Scallion(incomplete="use"), MANY, eta=0.05, local_steps=5).run(3).run(lost=[1, 2]).run(absent=[0])
    sim.run(steps=[5, 1, 3, 5])
    assert torch.allclose(sim.server.tensors["control"], torch.tensor(sim.state("control")).mean(0), atol=1e-5)


def test_cafe_without_compression_is_fedavg():
    cafe, fedavg = (Simulation(one, MANY, eta=0.05, local_steps=5).run(20) for one in (CAFe(density=1.0), FedAvg()))
    assert cafe.w == pytest.approx(fedavg.w, abs=1e-5)


def test_cafe_sends_what_the_last_aggregate_does_not_say():
    """One client, one entry a round: what is left out of one upload is all of the next that is new."""
    alone = Quadratics([[1.0, 1.0]], [[8.0, 6.0]])
    sim = Simulation(CAFe(density=0.5), alone, eta=0.5, local_steps=1).run()
    assert sim.sent[0]["update"] == [4.0]
    assert sim.w == [4.0, 0.0]
    sim.run()  # moves by (2, 3); less (4, 0) that is (−2, 3), of which 3 is sent
    assert sim.sent[0]["update"] == [3.0]
    assert sim.w == [8.0, 3.0]
