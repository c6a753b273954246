"""Runs with privacy: what they cost by another accountant, where they end, and that they go on bit for bit."""

import math

import numpy as np
import pytest
from assembled import assemble
from stopping import StopAt
from torch import nn

import efl
from efl import EFL, FedAvg, Fleet, Privacy, UserError, chain, load_experiment, resume, train
from efl.algorithms.fitting import with_privacy
from efl.rng import Purpose, stream
from efl.runs.directory import RunDirectory
from efl.runs.privacy import Accountant, epsilon, needed_noise
from efl.server.client_table import ClientTable
from efl.server.sampling import SAMPLERS
from efl.track.progress import PlainProgress
from efl.track.report import write_report
from efl.track.text import outcome

pytest.importorskip("dp_accounting")

POISSON = Fleet(selection="poisson")
SHORT = {"rounds": 6, "cohort": 5, "local_steps": 3, "evaluate_every": 3, "evaluate_own_every": "never"}


def private(algorithm=None, **settings):
    return chain(algorithm or FedAvg(), Privacy(**{"epsilon": 50.0, "noise_multiplier": 1.0, **settings}))


@pytest.mark.parametrize(
    ("rate", "noise", "rounds"), [(0.05, 0.8, 100), (0.1, 0.9, 60), (0.01, 0.6, 1000), (0.2, 3.0, 50), (0.1, 0.6, 3)]
)
def test_epsilon_is_that_of_another_accountant_to_one_percent(rate, noise, rounds):
    """Numerical composition of privacy loss random variables (Gopi et al. 2021), Microsoft's implementation."""
    other = pytest.importorskip("prv_accountant")
    mechanism = other.PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=noise)
    account = other.PRVAccountant(prvs=mechanism, max_self_compositions=rounds, eps_error=0.01, delta_error=1e-9)
    low, estimate, high = account.compute_epsilon(delta=1e-5, num_self_compositions=rounds)
    found = epsilon(rate, noise, 1e-5, rounds)
    assert found == pytest.approx(estimate, rel=0.01)
    assert low <= found <= 1.01 * high


def test_epsilon_without_sampling_is_the_gaussian_mechanisms():
    """T rounds of everybody are one Gaussian of noise z/√T, whose δ(ε) is known in closed form (Balle & Wang 2018)."""
    z = 5.0 / math.sqrt(100)
    found = epsilon(1.0, 5.0, 1e-5, 100)

    def normal(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    delta = normal(0.5 / z - found * z) - math.exp(found) * normal(-0.5 / z - found * z)
    assert delta == pytest.approx(1e-5, rel=0.02)


def test_the_noise_that_is_found_is_the_least_that_suffices():
    noise = needed_noise(0.1, 8.0, 1e-5, 60)
    assert epsilon(0.1, noise, 1e-5, 60) <= 8.0 < epsilon(0.1, 0.995 * noise, 1e-5, 60)
    assert Accountant(0.1, noise, 1e-5, 8.0).allowed(200) == pytest.approx(60, abs=1)


def test_a_run_spends_its_budget_and_says_so(tmp_path, digits):
    lines = []
    observers = [PlainProgress(lines.append)]
    result = train(
        digits,
        algorithm=chain(EFL(), Privacy(epsilon=8.0)),
        out=tmp_path / "run",
        fleet=POISSON,
        callbacks=observers,
        **SHORT,
    )
    assert "ε at most 8" in lines[1]
    assert "elasticity = 0.0" in lines[1]
    assert "ε 7.9" in lines[-1] or "ε 8.00" in lines[-1]
    spent = [record["epsilon"] for record in result.history]
    assert spent == sorted(spent)
    assert 7.9 < spent[-1] <= 8.0
    assert result.summary["epsilon"] == spent[-1]
    assert result.summary["stopped"] is None
    assert "ε = " in write_report(RunDirectory.open(tmp_path / "run")).read_text()


def test_the_budget_ends_a_run_before_it_is_exceeded(digits):
    settings = {**SHORT, "rounds": 50}
    result = train(digits, algorithm=private(epsilon=5.0, noise_multiplier=1.0), fleet=POISSON, **settings)
    account = Accountant(5 / 20, 1.0, 1e-5, 5.0)
    assert account.after(len(result.history)) <= 5.0 < account.after(len(result.history) + 1)
    assert result.summary["stopped"] == "the privacy budget"
    assert "another one would exceed the privacy budget of ε = 5" in outcome(result.summary)


@pytest.mark.parametrize("algorithm", [EFL(), FedAvg()], ids=["efl", "fedavg"])
@pytest.mark.parametrize("quantile", [None, 0.5])
def test_a_private_run_goes_on_bit_for_bit(tmp_path, digits, algorithm, quantile):
    settings = {"algorithm": private(algorithm, quantile=quantile), "fleet": POISSON, **SHORT}
    whole = train(digits, **settings).summary
    with pytest.raises(KeyboardInterrupt):
        train(digits, out=tmp_path / "run", callbacks=[StopAt(3)], **settings)
    went_on = resume(tmp_path / "run", federation=digits).summary
    assert went_on["model_sha256"] == whole["model_sha256"]
    assert went_on["epsilon"] == whole["epsilon"]


def test_an_experiment_file_can_ask_for_it(tmp_path):
    file = tmp_path / "private.toml"
    file.write_text(
        '[federation]\ndataset = "digits"\nclients = 20\n[training]\nrounds = 2\ncohort = 5\nlocal_steps = 2\n'
        '[fleet]\nselection = "poisson"\n[[transform]]\nname = "privacy"\nepsilon = 80.0\nnoise_multiplier = 0.9\n'
        "quantile = 0.5\n"
    )
    result = efl.run(load_experiment(file), out=tmp_path / "run")
    kept = RunDirectory.open(tmp_path / "run").experiment()
    assert kept.transform[0].settings["noise_multiplier"] == result.summary["noise_multiplier"] == 0.9
    assert kept.algorithm["elasticity"] == 0.0


@pytest.mark.parametrize(
    ("settings", "fleet", "words"),
    [
        ({}, Fleet(), "fleet.selection = 'uniform'"),
        ({}, Fleet(selection="share"), "fleet.selection = 'share'"),
        ({}, Fleet(selection="poisson", abandon=0.5), "fleet.abandon"),
        ({"delta": 0.1}, POISSON, "delta"),
        ({"epsilon": 0.1, "noise_multiplier": 0.5}, POISSON, "the first round would cost"),
        ({"quantile": 0.5, "bits_noise": 0.01}, POISSON, "bits_noise"),
    ],
)
def test_what_the_accountant_does_not_assume_is_refused_in_one_line(digits, settings, fleet, words):
    with pytest.raises(UserError, match=words) as refused:
        train(digits, algorithm=private(**settings), fleet=fleet, **SHORT)
    assert "\n" not in str(refused.value)


def test_a_model_with_statistics_is_refused(digits):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    with pytest.raises(UserError, match="BatchNorm"):
        train(digits, model=model, algorithm=private(), fleet=POISSON, **SHORT)


@pytest.mark.parametrize("rule", [efl.CoordinateMedian(), efl.Defence()])
def test_rules_that_look_at_single_updates_are_refused(digits, rule):
    with pytest.raises(UserError, match=f"leave {type(rule).__name__} out"):
        train(digits, "linear", private(chain(FedAvg(), rule)), POISSON, **SHORT)


def test_each_client_is_sampled_by_itself():
    table, everyone = ClientTable.of(np.ones(8, dtype=np.int64)), np.ones(8, dtype=bool)
    drawn = np.zeros((4000, 8), dtype=bool)
    for round_ in range(4000):
        cohort = SAMPLERS["poisson"].sample(table, everyone, 2, stream(0, Purpose.SELECTION, round_))
        assert (cohort.probability == 0.25).all()
        drawn[round_, cohort.clients] = True
    assert np.allclose(drawn.mean(0), 0.25, atol=0.03)
    pairs = np.corrcoef(drawn.T)[np.triu_indices(8, 1)]
    assert np.abs(pairs).max() < 0.06  # of a fixed-size cohort it would be −1/7
    without = SAMPLERS["poisson"].sample(table, np.arange(8) < 4, 2, stream(0, Purpose.SELECTION, 0))
    assert set(without.clients) == set(np.flatnonzero(drawn[0])) & {0, 1, 2, 3}  # nobody else's turn depends on them


def test_what_clients_are_told_besides_the_model_depends_on_nobody(digits):
    """Neither bytes nor losses nor sample counts of a round change the next one's settings."""
    algorithm = with_privacy(private(EFL()), noise_multiplier=1.0)
    coordinator, _ = assemble(digits, algorithm, POISSON, rounds=4, cohort=5, local_steps=2)
    told = []
    for round_ in range(4):
        coordinator.run_round(round_)
        settings = coordinator.settings(round_)
        told.append((settings.clients, settings.coarseness))
    assert len(set(told)) == 1
    assert coordinator.loss_limit.first is None


def test_an_empty_cohort_is_a_round_like_any_other(digits):
    result = train(digits, algorithm=private(EFL()), fleet=POISSON, **{**SHORT, "cohort": 1, "rounds": 8})
    assert 0 in [record["sampled"] for record in result.history]
    assert len(result.history) == 8
