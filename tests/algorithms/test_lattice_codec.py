"""The stochastic lattice as a codec: without bias up, on a grid down, and within its budget."""

import math

import numpy as np
import pytest
import torch
from quadratics import Quadratics, Simulation

from efl import EFL, FedAvg, Fleet, chain, train
from efl.algorithms.compression.error_feedback import ErrorFeedback
from efl.algorithms.compression.lattice import STEP, StochasticLattice, _rounded, grid_of, next_step
from efl.algorithms.state import Budget, RoundSettings
from efl.layout import Layout
from efl.server.byte_control import BOUNDS, CAUTIOUS, ByteControl


def test_rounding_is_unbiased_and_its_variance_what_it_must_be():
    """x/δ = 0.3 becomes 0 or 1, 1.3 becomes 1 or 2, with probability 0.3 for the larger: variance 0.21 δ²."""
    n, a = 200_000, 2.0
    row = np.tile(np.float32([0.3, -0.3, 1.3, 0.0]), n // 4)
    size = np.sqrt(np.square(row).mean())
    sent = _rounded(row * np.float32(1), a / size, Layout.flat(n), np.random.default_rng(0))  # δ = 2
    assert sent.step == pytest.approx(2.0)
    got = sent.onto(np.zeros(n, np.float32)).reshape(-1, 4)
    f = np.array([0.15, 0.15, 0.65, 0.0])
    assert np.allclose(got.mean(0), [0.3, -0.3, 1.3, 0.0], atol=0.02)
    assert np.allclose(got.var(0), 4 * f * (1 - f), atol=0.03)


def test_nothing_moved_is_nothing_sent():
    sent = _rounded(np.zeros(5, np.float32), 4.0, Layout.flat(5), np.random.default_rng(0))
    assert len(sent.positions) == 0
    assert StochasticLattice(step_up=4.0).fidelity(sent, None) == 1.0


@pytest.mark.parametrize("settings", [{}, {"density_down": 0.1}])
def test_what_a_codec_is_made_of_has_its_fidelity(settings):
    """Whatever is around the lattice: defences ask EFL's codec how much of an update was meant."""
    row, layout = np.random.default_rng(0).standard_normal(1000).astype(np.float32), Layout.flat(1000)
    sent = _rounded(row, 4.0, layout, np.random.default_rng(1))
    meant = StochasticLattice(step_up=4.0).fidelity(sent, RoundSettings(0, 0.1, 1, 1, layout))
    assert meant == pytest.approx(np.square(row).sum() / np.square(sent.values).sum())
    assert EFL(step_up=4.0, **settings).codec.fidelity(sent, RoundSettings(0, 0.1, 1, 1, layout)) == meant < 0.6
    assert EFL(density_up=0.1).codec.fidelity(sent, RoundSettings(0, 0.1, 1, 1, layout)) == 1.0


def test_the_step_down_changes_only_when_it_is_far_off():
    assert [next_step(0.25, 0.25 * 2**x, 2**-20) for x in (-0.7, 0, 0.7)] == [0.25] * 3
    assert [next_step(0.25, 0.25 * 2**x, 2**-20) for x in (-0.8, 0.8, 3.2)] == [0.125, 0.5, 2.0]
    assert next_step(0.25, 0.0, 2**-20) == 0.25
    assert next_step(0.0, 1e-30, 2**-20) == 2**-19


def test_the_model_stays_on_the_grid():
    algorithm = EFL(elasticity=0.0)
    problem = Quadratics((torch.rand(4, 7) + 0.5).tolist(), torch.randn(4, 7).tolist())
    sim = Simulation(algorithm, problem, eta=0.1, local_steps=3)
    grid = grid_of(torch.zeros(7))
    assert grid == 2.0**-18
    for _ in range(20):
        sim.run()
        w = torch.tensor(sim.w, dtype=torch.float64)
        assert torch.equal(w, torch.round(w / grid) * grid)
    step = sim.server.tensors[STEP][1].item()
    assert math.log2(step) == int(math.log2(step))
    assert torch.tensor(sim.w).abs().sum() > 0


def test_a_weight_stops_at_the_end_of_the_grid_and_the_rest_stays_in_the_residual():
    codec = ErrorFeedback(StochasticLattice(step_down=1.0), sides="server")
    algorithm = chain(FedAvg(), codec=codec)
    sim = Simulation(algorithm, Quadratics([[1.0, 1.0]], [[1000.0, 1.0]]), eta=0.5, local_steps=1)
    sim.run(100)
    bound = grid_of(torch.zeros(2)) * 2**23
    assert bound == 32.0
    assert abs(sim.w[0] - bound) <= sim.server.tensors[STEP][1].item()


def test_a_quadratic_comes_to_its_optimum_though_every_upload_is_noise():
    torch.manual_seed(1)
    problem = Quadratics((torch.rand(8, 40) + 0.5).tolist(), torch.randn(8, 40).tolist())
    sim = Simulation(EFL(elasticity=0.0), problem, eta=0.05, local_steps=4).run(400)
    first = torch.linalg.vector_norm(problem.optimum)
    assert torch.linalg.vector_norm(torch.tensor(sim.w) - problem.optimum) < 0.03 * first


# Budgets


def test_budgets_by_hand():
    assert Budget.named("1/25").allowed(1000, 10, 5) == 600
    assert Budget.named("0.5").allowed(1000, 1, 0) == 500
    assert Budget.named(70).allowed(1000, 10, 5) == 700
    assert Budget.named(0.04) == Budget.named("1/25")
    for wrong in ("0", "1/0", "much", "-1/2", 0.0):
        with pytest.raises((ValueError, ZeroDivisionError)):
            Budget.named(wrong)


@pytest.mark.parametrize("delay", [1, 10, 40])
@pytest.mark.parametrize("usual", [0.7, 1.0, 1.6])
def test_the_control_settles_within_the_budget(delay, usual):
    """A run whose bytes fall with the 0.8th power of the step, as it was ``delay`` rounds ago on average."""
    control, past, spent = ByteControl(Budget.named("1/25")), [0.0] * delay, []
    for _ in range(400):
        sent = usual * 800_000 / 25 * np.mean([2 ** (-0.8 * octaves) for octaves in past[-delay:]])
        past.append(control.coarseness(10)[1] / 4)
        control.note({"up": {"update": int(sent)}}, 40_000, 10, 10, 10 * delay)
        spent.append(sent / (800_000 / 25))
    assert CAUTIOUS - 0.01 < np.mean(spent) < 1.0
    assert np.std(past[-100:]) < 0.15
    again = ByteControl(control.budget)
    again.load_state_dict(control.state_dict())
    assert again == control


@pytest.mark.parametrize("returning", [1.0, 5.0, 10.0, 100.0])
@pytest.mark.parametrize("rounds", [2, 7, 100])
def test_later_rounds_get_more_of_the_same_budget(rounds, returning):
    control = ByteControl.of(Budget.named("1/25"), 10_000, rounds, returning)
    shares = [control.spending(round_) for round_ in range(rounds)]
    assert np.mean(shares) == pytest.approx(1.0)
    assert np.allclose(np.diff(shares), 2 * (1 - control.early) / (rounds - 1))
    assert control.early == pytest.approx({1.0: 0.4, 5.0: 0.4, 10.0: 0.7, 100.0: 0.97}[returning])
    assert control.octaves == pytest.approx(min(1.5, -np.log2(control.early)))  # as much coarser at first
    assert control.spending(rounds) == 1.0  # a run that goes on spends evenly


def test_who_spends_evenly():
    even, tiny = Budget.named("1/25", even=True), ByteControl.of(Budget.named("1/25"), 600, rounds=100)
    assert ByteControl.of(even, 10_000, rounds=100).spending(0) == 1.0
    assert tiny.spending(0) == 1.0  # all they send matters
    control = ByteControl.of(Budget.named("1/25"), 10_000, rounds=100)
    control.load_state_dict({"octaves": 0.5, "sent": 10.0, "allowed": 20.0})  # of a version that knew nothing else
    assert [control.spending(round_) for round_ in (0, 50, 99)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("delay", [1, 5, 20])
def test_spending_rises_as_planned(delay):
    """The same bytes as above: within the budget, with no debt at the end, and twice as many late as early."""
    rounds = 200
    control, past, spent = ByteControl.of(Budget.named("1/25"), 10_000, rounds, float(delay)), [], []
    past = [control.octaves] * delay
    for round_ in range(rounds):
        sent = 0.8 * 800_000 / 25 * np.mean([2 ** (-0.8 * octaves) for octaves in past[-delay:]])
        past.append(control.octaves)
        control.note({"up": {"update": int(sent)}}, 40_000, 10, 10, 10 * delay, round_)
        spent.append(sent / (800_000 / 25))
    assert 0.85 < np.mean(spent) < 1.0
    assert np.mean(spent[150:]) > (1.8 if delay <= 5 else 1.1) * np.mean(spent[:50])
    again = ByteControl.of(control.budget, 10_000, rounds, float(delay))
    again.load_state_dict(control.state_dict())
    assert again == control


def test_small_cohorts_take_shorter_steps():
    control = ByteControl(Budget.named("1/25"))
    up, down = zip(*(control.coarseness(cohort) for cohort in (100, 10, 5, 2.5, 0.01)), strict=True)
    assert up == (0, 0, -4, -8, -17)
    assert down == (0,) * 5  # what is left out of a broadcast is not lost


def test_the_control_does_not_run_away():
    """Even where coarser is no shorter."""
    control = ByteControl(Budget.named(10))
    for _ in range(1000):
        control.note({"up": {"update": 10_000}}, 4000, 10, 10, 50)
    assert control.octaves == BOUNDS[1]


@pytest.mark.parametrize("stragglers", [0.0, 0.9])
def test_a_run_keeps_to_its_share(stragglers):
    fleet = Fleet(stragglers=stragglers, inactive=0.1)
    settings = {"rounds": 100, "evaluate_every": 100, "evaluate_personalised_every": "never"}
    ours = train("digits", "mlp", EFL(), fleet, **settings).summary
    theirs = train("digits", "mlp", FedAvg(), fleet, **settings).summary
    share = (ours["bytes_up"] + ours["bytes_down"]) / (theirs["bytes_up"] + theirs["bytes_down"])
    assert share <= 1 / 25
    assert ours["final_mean_accuracy"] > theirs["final_mean_accuracy"]
