"""The rivals on two clients with two parameters each, with numbers worked out by hand.

f_1 = ½(w₁ − 8)² + (w₂ − 4)² and f_2 = w₁² + ½(w₂ − 16)², from w = 0, with η = 1/4 and E = 2 where nothing else is said.
A step of client 1 takes away 1/4 of its distance to 8 and half of that to 4, one of client 2 half of that to 0 and 1/4
of that to 16. The optimum of f_1 + f_2 is (8/3, 8).
"""

from math import log

import pytest
import torch
from quadratics import Quadratics, Simulation

from efl import FedAvg, Fleet
from efl.algorithms import (
    APFL,
    STC,
    VRLSGD,
    Ditto,
    FedAMP,
    FedCurv,
    FedDyn,
    FedGATE,
    FedNova,
    FedSMU,
    Mime,
    Scaffold,
    SignSGD,
)

TWO = Quadratics([[1.0, 2.0], [2.0, 1.0]], [[8.0, 4.0], [0.0, 16.0]])
FIRST_MODELS = {0: [3.5, 3.0], 1: [0.0, 7.0]}  # two plain steps from zero
COMPLETE = Fleet(stragglers=0.0, inactive=0.0)


def start(algorithm, eta=0.25, local_steps=2):
    return Simulation(algorithm, TWO, eta, local_steps)


def test_fedavg():
    sim = start(FedAvg()).run()
    assert sim.models == FIRST_MODELS
    assert sim.w == [1.75, 5.0]
    sim.run()
    assert sim.models == {0: [4.484375, 4.25], 1: [0.4375, 9.8125]}
    assert sim.w == [2.4609375, 7.03125]


def test_fednova():
    """Two steps and one: τ_eff = 1.5, weights 1.5/(2·2) = 0.375 and 1.5/(2·1) = 0.75."""
    sim = start(FedNova()).run(steps=[2, 1])
    assert sim.models == {0: [3.5, 3.0], 1: [0.0, 4.0]}
    assert sim.w == [0.375 * 3.5, 0.375 * 3 + 0.75 * 4]
    sim.run(steps=[2, 1])
    assert sim.models == {0: [4.23828125, 4.03125], 1: [0.65625, 7.09375]}
    # The weights sum to 1.125; the model itself gets −0.125, for they are weights of differences.
    assert sim.w == [
        0.375 * 4.23828125 + 0.75 * 0.65625 - 0.125 * 1.3125,
        0.375 * 4.03125 + 0.75 * 7.09375 - 0.125 * 4.125,
    ]
    assert start(FedNova()).run(3).w == start(FedAvg()).run(3).w


def test_scaffold():
    """Control variates are (x − y)/(2η) at first; then steps of client 1 are corrected by c − c_1 = (3.5, −4)."""
    sim = start(Scaffold()).run()
    assert sim.models == FIRST_MODELS
    assert sim.state("control") == [[-7.0, -6.0], [0.0, -14.0]]
    assert sim.server.tensors["control"].tolist() == [-3.5, -10.0]
    assert sim.w == [1.75, 5.0]
    sim.run()
    assert sim.models == {0: [2.953125, 5.75], 1: [1.75, 8.0625]}
    assert sim.state("control") == [[-5.90625, 2.5], [3.5, -10.125]]
    assert [sim.sent[client]["control"] for client in (0, 1)] == [[1.09375, 8.5], [3.5, 3.875]]
    assert sim.server.tensors["control"].tolist() == [-1.203125, -3.8125]
    assert sim.w == [2.3515625, 6.90625]


def test_scaffold_with_gradients_at_the_start_and_a_longer_server_step():
    sim = start(Scaffold(control="start", server_rate=2.0)).run()
    assert sim.state("control") == [[-8.0, -8.0], [0.0, -16.0]]
    assert sim.server.tensors["control"].tolist() == [-4.0, -12.0]
    assert sim.w == [3.5, 10.0]
    sim.run()  # client 1 from 3.5: −4.5 + 4, then −4.375 + 4, times −1/4
    assert sim.models[0][0] == 3.5 + 0.125 + 0.09375
    assert sim.state("control") == [[-4.5, 12.0], [7.0, -6.0]]


def test_scaffold_tells_what_was_lost_with_what_comes_next():
    sim = start(Scaffold()).run().run(lost=[1]).run()
    own = torch.tensor(sim.state("control"))
    assert torch.allclose(sim.server.tensors["control"], own.mean(0))


def test_vrlsgd():
    """Δ_1 = (x̂ − x_1)/(2η) = ((1.75, 5) − (3.5, 3))/0.5, and Δ_2 = −Δ_1."""
    sim = start(VRLSGD()).run()
    assert sim.models == FIRST_MODELS
    assert sim.state("difference") == [[0.0, 0.0], [0.0, 0.0]]
    assert sim.state("step") == [[-7.0, -6.0], [0.0, -14.0]]
    assert sim.w == [1.75, 5.0]
    sim.run()
    assert sim.state("difference") == [[-3.5, 4.0], [3.5, -4.0]]
    assert sim.models == {0: [2.953125, 5.75], 1: [1.75, 8.0625]}
    assert sim.state("step") == [[-2.40625, -1.5], [0.0, -6.125]]
    assert sim.w == [2.3515625, 6.90625]
    sim.run()
    assert sim.state("difference") == [[-4.703125, 6.3125], [4.703125, -6.3125]]


def test_vrlsgd_forgets_a_round_whose_reply_was_lost():
    sim = start(VRLSGD()).run(lost=[1]).run()
    assert sim.w != [2.3515625, 6.90625]
    assert sim.state("difference") == [[0.0, 0.0], [0.0, 0.0]]  # the mean was client 1's own; client 2 was not heard


def test_vrlsgd_tells_who_sat_out_the_mean_of_its_own_last_round():
    sim = start(VRLSGD()).run().run(absent=[1])
    assert sim.w == [2.953125, 5.75]
    assert {name for name in sim.server.tensors if name != "last"} == {"after 0", "after 1"}
    sim.run()
    assert sim.state("difference")[1] == [3.5, -4.0]  # as in the round after the first
    assert {name for name in sim.server.tensors if name != "last"} == {"after 2"}


def test_fedgate():
    sim = start(FedGATE(server_rate=2.0)).run()
    assert sim.w == [3.5, 10.0]
    sim.run()
    assert sim.state("difference") == [[-3.5, 4.0], [3.5, -4.0]]
    assert sim.models == {0: [3.9375, 7.0], 1: [2.1875, 10.875]}
    assert sim.w == [2.625, 7.875]
    assert start(FedGATE()).run(5).w == start(VRLSGD()).run(5).w


def test_fedgate_compressed():
    """3 is 108.86 of 127 levels up to 3.5, so 109 is sent; the difference is between what was sent."""
    sim = start(FedGATE(compression="byte")).run()
    assert sim.models == FIRST_MODELS
    rounded = 109 * 3.5 / 127
    assert sim.sent[0]["update"] == pytest.approx([3.5, rounded])
    assert sim.sent[1]["update"] == [0.0, 7.0]
    assert sim.w == pytest.approx([1.75, (rounded + 7) / 2])
    sim.run()
    difference = (7 - rounded) / 2 / 0.5
    assert sim.state("difference")[0] == pytest.approx([-3.5, difference])
    step = 0.5 * (sim.w_before[1] - 4) - 0.25 * difference
    moved = step + 0.5 * (sim.w_before[1] - step - 4) - 0.25 * difference
    assert sim.models[0][1] == pytest.approx(sim.w_before[1] - moved)


def test_mime():
    """Round 0: c = ((−8, −8) + (0, −16))/2. Round 1, β = ½: 4/8 = 0.5, then (4 − 0.5)/8 or (4 − 1)/8 more."""
    sim = start(Mime(momentum=0.5)).run()
    assert [sim.sent[client]["update"] for client in (0, 1)] == [[-8.0, -8.0], [0.0, -16.0]]
    assert sim.server.tensors["gradient"].tolist() == [-4.0, -12.0]
    assert sim.w == [0.0, 0.0]
    sim.run()
    assert sim.models == {0: [0.9375, 2.625], 1: [0.875, 2.8125]}
    assert sim.server.tensors["momentum"].tolist() == [-2.0, -6.0]
    assert sim.w == [0.90625, 2.71875]
    sim.run()
    assert sim.server.tensors["gradient"].tolist() == [-2.640625, -7.921875]
    sim.run()  # client 1, first step: (2.640625 + 2)/8, and the same in the second but for the first one's curvature
    assert sim.models[0][0] == 0.90625 + 4.640625 / 8 + (4.640625 - 4.640625 / 8) / 8
    assert sim.server.tensors["momentum"].tolist() == [-2.3203125, -6.9609375]
    assert sim.w == [1.9576416015625, 5.8729248046875]


def test_mimelite():
    sim = start(Mime(momentum=0.5, correction=False)).run()
    assert sim.models == {0: [1.875, 1.75], 1: [0.0, 3.75]}  # half steps, without momentum yet
    assert [sim.sent[client]["gradient"] for client in (0, 1)] == [[-8.0, -8.0], [0.0, -16.0]]
    assert sim.server.tensors["momentum"].tolist() == [-2.0, -6.0]
    assert sim.w == [0.9375, 2.75]
    sim.run()
    assert sim.models == {0: [3.0615234375, 4.609375], 1: [0.96484375, 7.26171875]}
    assert sim.server.tensors["momentum"].tolist() == [-2.296875, -6.9375]
    assert sim.w == [2.01318359375, 5.935546875]


def test_stc():
    """One of two entries is sent each way."""
    sim = start(STC(density_up=0.5, density_down=0.5)).run()
    assert [sim.sent[client]["update"] for client in (0, 1)] == [[3.5], [7.0]]
    assert sim.state("residual") == [[0.0, 3.0], [0.0, 0.0]]
    assert sim.server.tensors["residual"].tolist() == [1.75, 0.0]  # of (1.75, 3.5)
    assert sim.w == [0.0, 3.5]
    sim.run()
    assert sim.models == {0: [3.5, 3.875], 1: [0.0, 8.96875]}
    assert sim.state("residual") == [[0.0, 3.375], [0.0, 0.0]]  # of (3.5, 0.375 + 3)
    assert sim.server.tensors["residual"].tolist() == [0.0, 2.734375]  # of (1.75 + 1.75, 5.46875/2)
    assert sim.w == [3.5, 3.5]


def test_stc_puts_back_what_was_lost():
    sim = start(STC(density_up=0.5)).run(lost=[0])
    assert sim.state("residual")[0] == [0.0, 3.0]
    sim.run()  # the server moved by client 2 alone: w = (0, 7); client 1 moves to (3.5, 4.75) from there
    assert sim.sent[0]["update"] == [7.0]
    assert sim.state("residual")[0] == [0.0, 0.75]


def test_signsgd():
    """Client 2 has no gradient at w₁ = 0: positive in round 0; the vote on w₁ is a tie, positive too. δ = 1."""
    sim = start(SignSGD(step=4.0)).run()
    assert [sim.sent[client]["update"] for client in (0, 1)] == [[-1.0, -1.0], [1.0, -1.0]]
    assert sim.w == [-1.0, 1.0]
    sim.run()
    assert [sim.sent[client]["update"] for client in (0, 1)] == [[-1.0, -1.0], [-1.0, -1.0]]
    assert sim.w == [0.0, 2.0]
    sim.run(steps=[1, 1])  # zero is negative in odd rounds, but this one is even again
    assert sim.sent[1]["update"] == [1.0, -1.0]
    assert sim.w == [-1.0, 3.0]


def test_fedsmu():
    """Δ = (3.5, 3) and (0, 7): the zero is positive in round 0. γ = 4η = 1, ω = 1/8: w ← w + mean − w/8.

    In round 1 client 1 starts from (1, 1) and moves to (4.0625, 3.25), client 2 to (0.25, 7.5625). With β₁ = 3/4 what
    they send are the signs of 3/4·m + 1/4·Δ, where m = Δ/2 from round 0: client 2 sends w₁ by −0.75/4 alone.
    """
    sim = start(FedSMU(step=4.0, beta1=0.75, beta2=0.5, weight_decay=0.125)).run()
    assert sim.models == FIRST_MODELS
    assert [sim.sent[client]["update"] for client in (0, 1)] == [[1.0, 1.0], [1.0, 1.0]]
    assert sim.state("momentum") == [[1.75, 1.5], [0.0, 3.5]]
    assert sim.w == [1.0, 1.0]
    sim.run()
    assert sim.models == {0: [4.0625, 3.25], 1: [0.25, 7.5625]}
    assert [sim.sent[client]["update"] for client in (0, 1)] == [[1.0, 1.0], [-1.0, 1.0]]
    assert sim.state("momentum") == [[0.875 + 1.53125, 0.75 + 1.125], [-0.375, 1.75 + 3.28125]]
    assert sim.w == [1.0 - 0.125, 2.0 - 0.125]


def test_fedsmu_lets_old_momentum_outweigh_new_work():
    """Client 1 has m = (1.75, 1.5) from round 0; at (9, 9) it moves by (−0.4375, −3.75), less than three times that."""
    algorithm = FedSMU(step=36.0, beta1=0.75, beta2=0.5, weight_decay=0.0)
    sim = start(algorithm).run()
    assert sim.w == [9.0, 9.0]
    sim.run()
    assert sim.models[0] == [8.5625, 5.25]
    assert [sim.sent[client]["update"] for client in (0, 1)] == [[1.0, 1.0], [-1.0, 1.0]]
    assert sim.w == [9.0, 18.0]
    lossy = start(algorithm).run().run(lost=[0])  # the momentum is the client's own, whatever arrives
    assert lossy.state("momentum") == sim.state("momentum") == [[0.65625, -1.125], [-3.375, 3.28125]]
    assert lossy.w == [0.0, 18.0]


def test_fedcurv():
    """λ = ¼: client 1 is pulled to where client 2 ended, (0, 7), by ½(2, 1); client 2 to (3.5, 3) by ½(1, 2)."""
    sim = start(FedCurv(curvature=0.25)).run()
    assert sim.models == FIRST_MODELS
    assert sim.server.tensors["fisher"].tolist() == [3.0, 3.0]
    assert sim.server.tensors["anchor"].tolist() == pytest.approx([3.5 / 3, 13 / 3])
    assert sim.w == [1.75, 5.0]
    sim.run()  # w₁ of client 1: −6.25 + 1.75, then −5.125 + 2.875, times −1/4
    assert sim.models[0] == pytest.approx([1.75 + 1.125 + 0.5625, 4.65625])
    assert sim.models[1] == pytest.approx([0.84765625, 8.375])
    assert sim.state("fisher") == [[1.0, 2.0], [2.0, 1.0]]
    assert sim.w == pytest.approx([2.142578125, 6.515625])


def test_fedcurv_takes_out_ones_own_part_only_if_it_is_in():
    sim = start(FedCurv(curvature=0.25)).run().run(absent=[1])
    assert sim.w == pytest.approx([3.4375, 4.65625])
    sim.run()  # nobody else pulls client 1; client 2 is pulled to where client 1 ended, from its second step on
    assert sim.models[0][0] == pytest.approx(3.4375 + 0.25 * 4.5625 + 0.25 * 3.421875)
    assert sim.models[1][0] == pytest.approx(1.71875 - 0.859375 + 0.125 * 1.71875)


def test_apfl():
    """η = 1/16 and one step a round, so that α moves without leaving [0, 1]."""
    sim = start(APFL(), eta=1 / 16, local_steps=1).run()
    assert sim.models == {0: [0.5, 0.5], 1: [0.0, 1.0]}
    assert sim.state("personal") == [[0.25, 0.25], [0.0, 0.5]]
    assert sim.state("mixture") == [[0.5], [0.5]]  # v = w at first
    assert sim.w == [0.25, 0.75]
    sim.run()  # v̄ = (0.25, 0.5) and (0.125, 0.625), with gradients (−7.75, −7) and (0.25, −15.375)
    assert sim.state("mixture") == [[0.5 - 3.5 / 16], [0.5 - 3.78125 / 16]]
    assert sim.models == {0: [0.734375, 1.15625], 1: [0.21875, 1.703125]}
    assert sim.state("personal") == [[0.4921875, 0.46875], [-0.0078125, 0.98046875]]
    assert sim.own[0].tolist() == [0.734375 - 0.28125 * 0.2421875, 1.15625 - 0.28125 * 0.6875]
    assert sim.w == [0.4765625, 1.4296875]


def test_apfl_starts_a_personal_model_from_the_first_one_sent():
    sim = start(APFL(adaptive=False), eta=1 / 16, local_steps=1).run(absent=[1]).run()
    assert sim.state("personal")[1] == [0.5 - 0.5 * 1.0 / 16, 0.5 + 0.5 * 15.5 / 16]


def test_fedamp():
    """σ such that the models of round 0, 21.25 apart squared, weigh 1/8 for each other. λ/α = 1."""
    sim = start(FedAMP(attraction=0.25, distance=21.25 / log(2), proximity=1.0)).run()
    assert sim.models == {0: [3.0, 2.5], 1: [0.0, 6.0]}
    assert sim.w == [1.5, 4.25]
    cloud = [sim.algorithm.broadcast_to(sim.server, client).values.tolist() for client in (0, 1)]
    assert cloud[0] == pytest.approx([2.625, 2.9375])
    assert cloud[1] == pytest.approx([0.375, 5.5625])
    sim.run()
    assert sim.models[0] == pytest.approx([4.640625, 3.6015625])
    assert sim.models[1] == pytest.approx([0.140625, 9.4765625])
    assert not sim.server.w.any()  # there is no common model


def test_fedamp_keeps_a_silent_clients_model_and_weighs_others_one_at_most():
    sim = start(FedAMP(attraction=100.0, distance=100.0)).run()
    kept = sim.server.tensors["1"].tolist()
    sim.run(lost=[1])
    assert sim.server.tensors["1"].tolist() == kept
    assert sim.algorithm.broadcast_to(sim.server, 0).values.tolist() == kept


def test_ditto():
    """λ = 1: v ← v − ¼(a(v − b) + v − w). Client 1 from zero, first coordinate: 2, then 2 − ¼(−6 + 2)."""
    sim = start(Ditto(proximity=1.0)).run()
    assert sim.models == FIRST_MODELS
    assert sim.state("personal") == [[3.0, 2.5], [0.0, 6.0]]
    assert sim.w == [1.75, 5.0]  # that of FedAvg
    sim.run()
    assert sim.state("personal") == [[4.40625, 4.21875], [0.546875, 9.375]]
    assert {client: own.tolist() for client, own in sim.own.items()} == dict(enumerate(sim.state("personal")))
    assert sim.w == start(FedAvg()).run(2).w


def test_ditto_without_proximity_trains_alone_from_the_first_model_sent():
    sim = start(Ditto(proximity=0.0)).run(absent=[1]).run(2)
    alone = torch.tensor([3.5, 3.0])  # client 2 joins at client 1's model
    for _ in range(4):
        alone -= 0.25 * TWO.a[1] * (alone - TWO.b[1])
    assert sim.own[1].tolist() == pytest.approx(alone.tolist())


def test_feddyn():
    """α = 4, so that every step ends half-way to w_τ. Client 1, first coordinate: 2/2, then (1 + 7/4)/2."""
    sim = start(FedDyn(strength=4.0)).run()
    assert sim.models == {0: [1.375, 1.25], 1: [0.0, 2.75]}
    assert sim.state("gradient") == [[-5.5, -5.0], [0.0, -11.0]]
    assert sim.server.tensors["mean_gradient"].tolist() == [-2.75, -8.0]
    assert sim.w == [1.375, 4.0]  # the mean, and as much again: −h/α
    sim.run()  # client 1 from 1.375: + 1.125/4, half-way to 1.375; then + 0.984375/4, half-way
    assert sim.models[0][0] == 1.568359375
    assert sim.state("gradient")[0][0] == -5.5 - 4 * (1.568359375 - 1.375)


def test_feddyns_server_knows_the_mean_of_what_clients_keep():
    """Whatever is lost, scaled or incomplete: a client forgets a round that the server never heard of."""
    sim = start(FedDyn(incomplete="use")).run(steps=[2, 1]).run(lost=[1]).run(absent=[0]).run(steps=[1, 2])
    kept = torch.tensor(sim.state("gradient"))
    assert torch.allclose(sim.server.tensors["mean_gradient"], kept.mean(0), atol=1e-6)
