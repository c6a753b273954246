"""Transformations and codecs around algorithms: numbers by hand, identities, and what must be refused.

The quadratics are those of test_baselines: two plain steps from zero bring the clients to (3.5, 3) and (0, 7), so that
the first aggregate of FedAvg is (1.75, 5).
"""

from math import sqrt

import pytest
import torch
from quadratics import Quadratics, Simulation
from stopping import StopAt

import efl
from efl import (
    EFL,
    STC,
    ClipByNorm,
    CoordinateMedian,
    EightBit,
    ErrorFeedback,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Fleet,
    Mime,
    ServerMomentum,
    SparseTernary,
    Transform,
    Uncompressed,
    UserError,
    chain,
    train,
)
from efl.algorithms import codec_table, create, transform_tables

TWO = Quadratics([[1.0, 2.0], [2.0, 1.0]], [[8.0, 4.0], [0.0, 16.0]])
UNRELIABLE = Fleet(stragglers=0.3, inactive=0.1, lost=0.1)
SHORT = {"rounds": 6, "cohort": 6, "local_steps": 4, "evaluate_own_every": "never"}


def start(algorithm):
    return Simulation(algorithm, TWO, 0.25, 2)


class Nothing(Transform):
    """A stage that overrides nothing."""


class Doubled(Transform):
    def on_client(self, delta, work):
        return 2 * delta


def test_fedavgm():
    """m = Δ = (1.75, 5), then m = Δ/2 + what the clients of w = (1.75, 5) move on average."""
    sim = start(FedAvgM(server_momentum=0.5)).run()
    assert sim.w == [1.75, 5.0]
    sim.run()
    plain = start(FedAvg()).run(2).w
    assert sim.server.tensors["server_momentum"].tolist() == [plain[0] - 1.75 + 0.875, plain[1] - 5 + 2.5]
    assert sim.w == [plain[0] + 0.875, plain[1] + 2.5]


@pytest.mark.parametrize(
    ("algorithm", "variance"),
    [
        (FedAdagrad(server_rate=0.5, tau=1.0, beta1=0.5), lambda square: 1 + square),
        (FedAdam(server_rate=0.5, tau=1.0, beta1=0.5, beta2=0.75), lambda square: 0.75 + 0.25 * square),
        (FedYogi(server_rate=0.5, tau=1.0, beta1=0.5, beta2=0.75), lambda square: 1 + 0.25 * square),  # Δ² > v = 1
    ],
    ids=["adagrad", "adam", "yogi"],
)
def test_adaptive_server_optimisers(algorithm, variance):
    """w = η_s m / (√v + τ) with m = Δ/2 and v from v = τ² = 1."""
    sim = start(algorithm).run()
    expected = [0.5 * (delta / 2) / (sqrt(variance(delta**2)) + 1) for delta in (1.75, 5.0)]
    assert sim.w == pytest.approx(expected)


def test_yogis_variance_falls_where_squares_are_small():
    sim = start(FedYogi(tau=10.0, beta2=0.75)).run()
    assert sim.server.tensors["server_variance"].tolist() == [100 - 0.25 * 1.75**2, 100 - 0.25 * 25]


@pytest.mark.parametrize("algorithm", [FedAvgM(), FedAdam(server_rate=0.3), FedYogi(server_rate=0.3)], ids=str)
def test_server_optimisers_come_nearer_to_where_fedavg_ends(algorithm):
    stationary = torch.tensor(start(FedAvg()).run(200).w)
    near, nearer = (torch.dist(torch.tensor(start(algorithm).run(rounds).w), stationary) for rounds in (3, 150))
    assert nearer < 0.1 * near


def test_transformations_work_around_any_algorithm(digits):
    algorithm = chain(EFL(density_up=0.1, density_down=0.1), ServerMomentum(momentum=0.5), ClipByNorm(50.0))
    assert isinstance(algorithm, EFL)
    result = train(digits, "linear", algorithm, UNRELIABLE, rounds=40, cohort=10)
    assert result.summary["bmta_global"] > 0.6
    assert result.summary["algorithm"] == "efl"


def test_clients_apply_a_chain_in_order_and_before_the_residual():
    """δ doubled is (7, 6) and (0, 14): ST sends 7 and 14, and (0, 6) stays with client 1."""
    sim = start(chain(STC(density_up=0.5), Doubled())).run()
    assert [sim.sent[client]["update"] for client in (0, 1)] == [[7.0], [14.0]]
    assert sim.state("residual") == [[0.0, 6.0], [0.0, 0.0]]


def test_clipping_by_hand():
    """Client 1 moved by (3.5, 3), of length √21.25; client 2 by 7."""
    sim = start(chain(FedAvg(), ClipByNorm(5.0))).run()
    assert sim.sent[0]["update"] == [3.5, 3.0]  # shorter than that
    assert sim.sent[1]["update"] == [0.0, 5.0]
    assert sim.w == [1.75, 4.0]


@pytest.mark.parametrize("algorithm", [STC(density_up=0.5), EFL(density_up=0.5, elasticity=0.0)], ids=str)
def test_what_is_sent_is_never_longer_than_the_bound_residual_included(algorithm):
    sim = start(chain(algorithm, ClipByNorm(2.0)))
    for _ in range(6):
        sim.run()
        lengths = [torch.tensor(sent["update"]).norm() for sent in sim.sent.values()]
        assert all(length <= 2.0 + 1e-6 for length in lengths)


def test_the_median_of_three_ignores_one_that_lies():
    three = Quadratics([[1.0], [1.0], [1.0]], [[4.0], [6.0], [1e6]])
    robust = Simulation(chain(FedAvg(), CoordinateMedian()), three, 0.25, 1).run()
    assert robust.w == [1.5]  # a quarter of the way to 6
    assert Simulation(FedAvg(), three, 0.25, 1).run().w[0] > 8e4
    even = Quadratics([[1.0], [1.0]], [[4.0], [8.0]])
    assert Simulation(chain(FedAvg(), CoordinateMedian()), even, 0.25, 1).run().w == [1.5]


def test_the_median_keeps_learning(digits):
    iid = efl.load("digits", clients=10, partition="iid")
    result = train(iid, "linear", chain(FedAvg(), CoordinateMedian()), rounds=30, cohort=10)
    assert result.summary["bmta_global"] > 0.8


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_stages_that_do_nothing_change_no_bit(digits, model):
    plain, chained = (
        train(digits, model, algorithm, UNRELIABLE, **SHORT) for algorithm in (FedAvg(), chain(FedAvg(), Nothing()))
    )
    assert plain.summary["model_sha256"] == chained.summary["model_sha256"]


def test_fedavg_with_ternary_error_feedback_is_stc_bit_for_bit(digits):
    codec = ErrorFeedback(SparseTernary(up=0.05, down=0.05))
    made, stc = (
        train(digits, "mlp", algorithm, UNRELIABLE, **SHORT)
        for algorithm in (chain(FedAvg(), codec=codec), STC(density_up=0.05, density_down=0.05))
    )
    assert made.summary["model_sha256"] == stc.summary["model_sha256"]
    assert made.summary["bytes"] == stc.summary["bytes"]


@pytest.mark.parametrize(
    "codec",
    [
        Uncompressed("bfloat16"),
        EightBit(),
        ErrorFeedback(EightBit()),
        SparseTernary(up=0.3, down=1.0),
        ErrorFeedback(SparseTernary(up=1.0, down=0.1)),
        ErrorFeedback(SparseTernary(up=0.1, down=0.1, scope="tensor"), resend=False),
    ],
    ids=str,
)
def test_every_codec_learns(digits, codec):
    result = train(digits, "linear", chain(FedAvg(), codec=codec), Fleet(lost=0.1), rounds=30, cohort=10)
    assert result.summary["bmta_global"] > 0.6


def test_error_feedback_takes_back_what_was_lost_whatever_the_codec():
    """Uncompressed, client 1 sends (3.5, 3) again on top of what it moves from w = (0, 7), which client 2 made."""
    sim = start(chain(FedAvg(), codec=ErrorFeedback(Uncompressed()))).run(lost=[0])
    assert sim.w == [0.0, 7.0]
    sim.run()
    assert sim.sent[0]["update"] == [3.5 + 3.5, 4.75 + 3.0]


def test_a_codec_is_described_by_a_table_and_resumed_from_it(digits, tmp_path):
    algorithm = chain(FedAvg(), codec=ErrorFeedback(SparseTernary(up=0.1, down=0.2), resend=False))
    inner = {"name": "sparse_ternary", "up": 0.1, "down": 0.2, "scope": "whole"}
    table = {"name": "error_feedback", "codec": inner, "resend": False, "server_applies": "broadcast", "sides": "both"}
    assert codec_table(algorithm) == table
    assert create("fedavg", codec=table).codec == algorithm.codec
    assert codec_table(FedAvg()) == {}
    settings = {"rounds": 20, "cohort": 5, "evaluate_own_every": "never"}
    whole = train("digits", "linear", algorithm, UNRELIABLE, **settings).summary
    with pytest.raises(KeyboardInterrupt):
        train("digits", "linear", algorithm, UNRELIABLE, out=tmp_path / "run", callbacks=[StopAt(12)], **settings)
    assert efl.resume(tmp_path / "run").summary["model_sha256"] == whole["model_sha256"]


def test_a_chain_is_described_by_tables_and_resumed_from_them(digits, tmp_path):
    algorithm = chain(EFL(density_up=0.1, density_down=0.1), ClipByNorm(3.0), ServerMomentum(0.5, 0.5))
    tables = transform_tables(algorithm)
    assert tables == [{"name": "clip_by_norm", "norm": 3.0}, {"name": "server_momentum", "rate": 0.5, "momentum": 0.5}]
    assert create("efl", {"density_up": 0.1, "density_down": 0.1}, tables).transforms == algorithm.transforms
    settings = {"rounds": 30, "cohort": 5, "evaluate_own_every": "never"}
    whole = train("digits", "linear", algorithm, UNRELIABLE, **settings).summary
    with pytest.raises(KeyboardInterrupt):
        train("digits", "linear", algorithm, UNRELIABLE, out=tmp_path / "run", callbacks=[StopAt(22)], **settings)
    assert efl.resume(tmp_path / "run").summary["model_sha256"] == whole["model_sha256"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: chain(FedAvg(), FedAvg()), "transformations after the algorithm"),
        (lambda: chain(FedAvgM(), ServerMomentum()), "two transformations keep 'server_momentum'"),
        (lambda: chain(Mime(), ClipByNorm()), "cannot be chained"),
        (lambda: ClipByNorm(0.0), "norm"),
        (lambda: create("fedavg", {}, [{"norm": 1}]), "needs a name"),
        (lambda: create("fedavg", {}, [{"name": "clip_by_norm", "nrom": 1}]), "did you mean transform.norm"),
        (lambda: create("fedavg", {}, [{"name": "clip_by_nrom"}]), "did you mean 'clip_by_norm'"),
        (lambda: create("fedavg", codec={"up": 0.1}), "needs a name"),
        (lambda: create("fedavg", codec={"name": "sparse_ternary", "up": 0}), "codec.up"),
        (lambda: create("fedavg", codec={"name": "sparse_ternry"}), "did you mean 'sparse_ternary'"),
    ],
)
def test_what_cannot_be_chained_is_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
