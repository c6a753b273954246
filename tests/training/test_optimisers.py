"""Clients' optimisers take the steps of `torch.optim`; what incomplete work is worth under them."""

import pytest
import torch
import torch.nn.functional as F
from backends import NAMES, backend
from quadratics import Quadratics, Simulation
from torch import nn

import efl
from efl import SGD, Adam, AdamW, Federation
from efl.algorithms.base import RoundSettings
from efl.algorithms.components.elastic import ElasticField, completion_scale, elastic_step, steps_under_pull
from efl.errors import UserError
from efl.layout import Layout
from efl.models import FlatModel
from efl.models.vectors import flatten
from efl.rng import Purpose, stream
from efl.training.batches import batch_indices
from efl.training.local_work import Assignment
from efl.training.optimisers import TorchOptimiser, clipped, optimiser_of
from efl.training.trainer import Trainer

ETA = 0.05
PAIRS = {
    "momentum": (SGD(momentum=0.9), lambda p: torch.optim.SGD(p, ETA, momentum=0.9)),
    "nesterov": (
        SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, ETA, momentum=0.9, nesterov=True, weight_decay=0.1),
    ),
    "decay": (SGD(weight_decay=0.1), lambda p: torch.optim.SGD(p, ETA, weight_decay=0.1)),
    "adam": (Adam(), lambda p: torch.optim.Adam(p, ETA)),
    "adam with decay": (
        Adam(beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, ETA, (0.8, 0.95), 1e-6, 0.1),
    ),
    "adamw": (AdamW(weight_decay=0.1), lambda p: torch.optim.AdamW(p, ETA, weight_decay=0.1)),
    "rmsprop": (TorchOptimiser(factory=torch.optim.RMSprop), lambda p: torch.optim.RMSprop(p, ETA)),
}


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 11), nn.ReLU(), nn.Linear(11, 3))


def data(clients=1):
    x, y = torch.randn(60, 7), torch.randint(0, 3, (60,))
    return Federation.from_tensors(x, y, clients, "iid", classes=3)


def trained(name, federation, optimiser, steps):
    """A client's model after its steps, by a backend."""
    model = FlatModel(network())
    trainer = Trainer(backend(name, model), federation, seed=3, optimiser=optimiser)
    settings = RoundSettings(0, ETA, steps, 8, model.layout)
    work = trainer.work([Assignment(client, steps) for client in range(len(federation))], model.w, settings, {}, {})
    work.train()
    return work.W


def by_torch(federation, client, make, steps, clip=None):
    module = network()
    optimiser = make(module.parameters())
    rng = stream(3, Purpose.BATCHES, 0, client)
    for chosen in batch_indices(federation.train[client], steps, 8, rng):
        x, y = federation.batch(torch.from_numpy(chosen))
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimiser.step()
    return flatten(module.parameters())


@pytest.mark.parametrize("steps", [1, 12])
@pytest.mark.parametrize("pair", PAIRS)
def test_eager_steps_are_those_of_torch_to_the_last_bit(pair, steps):
    optimiser, make = PAIRS[pair]
    federation = data()
    assert torch.equal(trained("eager", federation, optimiser, steps)[0], by_torch(federation, 0, make, steps))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pair", PAIRS)
def test_every_backend_takes_them(pair, name):
    optimiser, make = PAIRS[pair]
    federation = data(clients=3)
    found = trained(name, federation, optimiser, 1)
    expected = torch.stack([by_torch(federation, client, make, 1) for client in range(3)])
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_clipping_is_that_of_torch(name):
    federation = data(clients=2)
    found = trained(name, federation, SGD(momentum=0.5, clip=0.1), 6)
    expected = [by_torch(federation, c, lambda p: torch.optim.SGD(p, ETA, momentum=0.5), 6, clip=0.1) for c in range(2)]
    assert torch.allclose(found, torch.stack(expected), rtol=0, atol=1e-6)
    assert clipped(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0).norm(dim=1).tolist() == pytest.approx([1.0, 0.5])


def test_rows_that_end_early_leave_the_others_alone():
    """Momentum of a client with more steps is its own, whoever works beside it."""
    federation, model = data(clients=2), FlatModel(network())
    for optimiser in (SGD(momentum=0.9), AdamW(), TorchOptimiser(factory=torch.optim.Adagrad)):
        trainer = Trainer(backend("batched", model), federation, seed=3, rows=2, optimiser=optimiser)
        settings = RoundSettings(0, ETA, 6, 8, model.layout)
        both = trainer.work([Assignment(0, 6), Assignment(1, 2)], model.w, settings, {}, {})
        alone = trainer.work([Assignment(0, 6)], model.w, settings, {}, {})
        both.train()
        alone.train()
        assert torch.equal(both.W[0], alone.W[0])


@pytest.mark.parametrize(("optimiser", "steps"), [(SGD(momentum=0.9), 7), (SGD(momentum=0.6, nesterov=True), 5)])
@pytest.mark.parametrize("strength", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["implicit", "explicit"])
def test_progress_is_the_displacement_under_a_constant_gradient(optimiser, steps, strength, kind):
    """With a pull towards where the model starts, what is left is the gradient's part: −η a_s g."""
    field = ElasticField(None, torch.tensor([strength / ETA]), torch.zeros(1))
    step, w, gradient = elastic_step(field, ETA, 1.0, kind), torch.zeros(1, 1), torch.tensor([[2.0]])
    move = optimiser.start(w, ETA, Layout.flat(1))
    for _ in range(steps):
        step.take(w, gradient, ETA, move)
    worth = float(-w / (ETA * 2.0))
    assert steps_under_pull(field, ETA, 1.0, torch.tensor([steps]), kind, optimiser).item() == pytest.approx(worth)
    if not strength:
        assert optimiser.progress(steps) == pytest.approx(worth)
    scale = completion_scale(field, ETA, 1.0, torch.tensor([steps, 1]), steps, 1, kind, optimiser)
    first = optimiser.coefficient(1) * (1 if kind == "explicit" else 1 / (1 + strength))
    assert scale[:, 0].tolist() == pytest.approx([1.0, worth / first], rel=1e-5)


ALGORITHMS = {
    "fedavg": efl.FedAvg(incomplete="use"),
    "efl": efl.EFL(elasticity=0.0, density_up=1.0, density_down=1.0, weight_cap=1e6),
    "efl at the server": efl.EFL(
        elasticity=0.0, density_up=1.0, density_down=1.0, weight_cap=1e6, scale_at="server", weighting="C"
    ),
}


def bias(algorithm, optimiser, eta, most=8):
    """How far the mean over all s of a round with s of E steps is from a round with E, relative to that."""
    problem = Quadratics([[1.0, 0.5], [2.0, 1.5]], [[1.0, -2.0], [3.0, 0.5]])
    whole, *parts = ([most, most], *([steps, most] for steps in range(1, most + 1)))
    runs = [Simulation(algorithm, problem, eta, most, optimiser).run(steps=one) for one in (whole, *parts)]
    moved = [torch.tensor(run.w) for run in runs]
    return float((torch.stack(moved[1:]).mean(0) - moved[0]).norm() / moved[0].norm())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("optimiser", [SGD(), SGD(momentum=0.9), SGD(momentum=0.5, nesterov=True), Adam(), AdamW()])
def test_incomplete_work_is_unbiased_where_gradients_change_little(algorithm, optimiser):
    """The bias vanishes with η; E/s would leave momentum's later, longer steps out of account."""
    large, small = (bias(ALGORITHMS[algorithm], optimiser, eta) for eta in (0.01, 0.001))
    assert small < 0.01
    assert small < 0.2 * large + 1e-4


def test_without_normalisation_momentum_would_be_biased():
    class Naive(SGD):
        def progress(self, steps):
            return float(steps)

    naive, normalised = (bias(ALGORITHMS["fedavg"], kind(momentum=0.9), 0.001) for kind in (Naive, SGD))
    assert naive > 20 * normalised


def test_fednova_normalises_momentum():
    """Clients of one objective with different numbers of steps: FedNova's round is that of τ_eff plain steps."""
    problem, optimiser, eta = Quadratics([[1.0]] * 2, [[5.0]] * 2), SGD(momentum=0.8), 1e-5
    (w,) = Simulation(efl.FedNova(), problem, eta, 10, optimiser).run(steps=[10, 3]).w
    effective = (optimiser.progress(10) + optimiser.progress(3)) / 2
    assert w == pytest.approx(eta * effective * 5.0, rel=1e-3)


@pytest.mark.parametrize("algorithm", [efl.Scaffold(), efl.VRLSGD()])
def test_control_variates_are_gradients_under_momentum(algorithm):
    problem, eta = Quadratics([[1.0], [1.0]], [[4.0], [-2.0]]), 1e-4
    simulation = Simulation(algorithm, problem, eta, 6, SGD(momentum=0.9)).run()
    found = simulation.state("control" if isinstance(algorithm, efl.Scaffold) else "step")
    assert found[0][0] == pytest.approx(-4.0, rel=0.01)
    assert found[1][0] == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("algorithm", ["scaffold", "vrlsgd", "mime", "apfl", "signsgd"])
def test_algorithms_that_cannot_use_an_optimiser_say_so(algorithm):
    with pytest.raises(UserError, match=rf"{algorithm}, round [01], client .*: training\.optimiser: this algorithm"):
        efl.train("digits", algorithm=algorithm, rounds=2, optimiser="adam")


@pytest.mark.parametrize("algorithm", ["efl", "efl:2021", "fedprox", "fedcurv", "fedamp", "stc", "fedavgm", "fednova"])
@pytest.mark.parametrize("optimiser", ["adamw", {"name": "sgd", "momentum": 0.9}])
def test_all_others_use_it(algorithm, optimiser):
    settings = {"rounds": 6, "learning_rate": 0.01 if optimiser == "adamw" else 0.05, "cohort": 5}
    fleet = efl.Fleet(stragglers=0.5)
    result = efl.train("digits", algorithm=algorithm, optimiser=optimiser, fleet=fleet, **settings)
    plain = efl.train("digits", algorithm=algorithm, fleet=fleet, **settings)
    assert not result.summary["diverged"]
    assert result.summary["model_sha256"] != plain.summary["model_sha256"]


def test_optimisers_by_name():
    assert optimiser_of("adamw") == AdamW()
    assert optimiser_of({"name": "sgd", "momentum": 0.9}) == SGD(momentum=0.9)
    with pytest.raises(UserError, match="unknown optimiser 'adm'; did you mean 'adam'"):
        optimiser_of("adm")
    with pytest.raises(UserError, match=r"training.optimiser.momentum: input should be less than 1"):
        optimiser_of({"name": "sgd", "momentum": 1.5})
    with pytest.raises(UserError, match=r"unknown key training\.optimiser\.momentun; did you mean"):
        optimiser_of({"name": "sgd", "momentun": 0.9})
    with pytest.raises(UserError, match="optimiser: a int is none"):
        optimiser_of(3)
    with pytest.raises(UserError, match="optimiser: LBFGS asks for the loss several times a step"):
        optimiser_of(torch.optim.LBFGS)
