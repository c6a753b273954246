"""Losses against PyTorch's own, metrics by hand, and every Fisher estimator against brute force, sample by sample."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from backends import rows_of
from torch import nn

from efl import Federation, UserError
from efl.algorithms.base import RoundSettings
from efl.models import FlatModel
from efl.models.outputs import tensor_of
from efl.models.vectors import flatten
from efl.rng import Purpose, stream
from efl.training.backends.chain import Chain
from efl.training.backends.selection import Batched, Eager, Native, select_backend
from efl.training.batches import batch_indices
from efl.training.fisher import exact_fisher
from efl.training.local_work import Assignment
from efl.training.observers import SquaredGradients
from efl.training.tasks import METRICS, Classification, Objective
from efl.training.tasks.elementwise import AbsoluteError, Huber, MultiLabel, Regression
from efl.training.tasks.next_token import NextToken
from efl.training.tasks.own import OwnLoss
from efl.training.trainer import Trainer

SAMPLES = 7


def classes(shape, padded=False):
    y = torch.randint(0, 3, shape)
    return y.masked_fill(torch.rand(shape) < 0.4, -100) if padded else y


class Sequences(nn.Module):
    """A score for each of three classes at every position, in a tuple."""

    def __init__(self):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(self.embedding(x).cumsum(1).tanh()), None


def chain(outputs):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs))


def vectors():
    return torch.randn(SAMPLES, 4)


def tokens():
    return torch.randint(0, 5, (SAMPLES, 6))


# A task, a network, samples, targets, and PyTorch's own loss of a batch.
TASKS = {
    "classes": lambda: (Classification(), chain(3), vectors(), classes((SAMPLES,)), F.cross_entropy),
    "weighted classes": lambda: (
        Classification(class_weights=(1.0, 2.0, 5.0)),
        chain(3),
        vectors(),
        classes((SAMPLES,)),
        lambda o, y: F.cross_entropy(o, y, torch.tensor([1.0, 2.0, 5.0])),
    ),
    "some classes": lambda: (
        Classification(ignore_index=2),
        chain(3),
        vectors(),
        torch.tensor([0, 2, 1, 1, 2, 0, 1]),
        lambda o, y: F.cross_entropy(o, y, ignore_index=2),
    ),
    "sequences": lambda: (
        Classification(),
        Sequences(),
        tokens(),
        classes((SAMPLES, 6)),
        lambda o, y: F.cross_entropy(o.mT, y),
    ),
    "padded sequences": lambda: (
        Classification(ignore_index=-100, class_weights=(1.0, 3.0, 0.5)),
        Sequences(),
        tokens(),
        classes((SAMPLES, 6), padded=True),
        lambda o, y: F.cross_entropy(o.mT, y, torch.tensor([1.0, 3.0, 0.5])),
    ),
    "next token": lambda: (
        NextToken(ignore_index=-100),
        Sequences(),
        tokens(),
        classes((SAMPLES, 6), padded=True),
        lambda o, y: F.cross_entropy(o[:, :-1].mT, y[:, 1:]),
    ),
    "mse": lambda: (Regression(), chain(2), vectors(), torch.randn(SAMPLES, 2), F.mse_loss),
    "mse of one": lambda: (
        Regression(),
        chain(1),
        vectors(),
        torch.randn(SAMPLES),
        lambda o, y: F.mse_loss(o.squeeze(1), y),
    ),
    "mae": lambda: (AbsoluteError(), chain(2), vectors(), torch.randn(SAMPLES, 2), F.l1_loss),
    "huber": lambda: (
        Huber(delta=0.7),
        chain(2),
        vectors(),
        2 * torch.randn(SAMPLES, 2),
        lambda o, y: F.huber_loss(o, y, delta=0.7),
    ),
    "labels": lambda: (
        MultiLabel(),
        chain(3),
        vectors(),
        (torch.rand(SAMPLES, 3) < 0.4).float(),
        F.binary_cross_entropy_with_logits,
    ),
    "own": lambda: (OwnLoss(_fourth), chain(2), vectors(), torch.randn(SAMPLES, 2), lambda o, y: _fourth(o, y)),
}
CHAINS = [name for name in TASKS if "sequences" not in name and name != "next token"]


def _fourth(outputs, targets):
    return (outputs - targets).pow(4).mean()


@pytest.mark.parametrize("name", TASKS)
def test_a_batchs_loss_is_that_of_pytorch(name):
    task, network, x, y, loss = TASKS[name]()
    outputs = network(x)
    expected = loss(tensor_of(outputs), y)
    assert torch.allclose(task.loss(task.read(outputs), y), expected, rtol=1e-5)
    losses, weights = task.sample_losses(task.read(outputs), y), task.sample_weights(y)
    weights = torch.ones(SAMPLES) if weights is None else weights
    assert losses.shape == weights.shape == (SAMPLES,)
    if name != "own":
        assert torch.allclose((losses * weights).sum() / weights.sum(), expected, rtol=1e-5)


def by_hand(task, network, x, y):
    """The mean of squared gradients, by as many passes as there are samples; padding and weights taken by hand."""
    squares, counts = [], []
    for sample, target in zip(x, y, strict=True):
        network.zero_grad()
        outputs = task.read(network(sample[None]))
        task.loss(outputs, target[None]).backward()  # the loss of a batch of one: its weight cancels
        squares.append(
            flatten(torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters()).square()
        )
        counts.append(1.0 if task.sample_weights(y) is None else _count(task, target))
    weights = torch.tensor(counts)
    return (torch.stack(squares) * weights[:, None]).sum(0) / weights.sum()


def _count(task, target):
    """How much a sample counts: the sum over its positions of the class's weight, nothing for padding."""
    positions = target.reshape(-1)[1 if isinstance(task, NextToken) else 0 :].tolist()
    of = task.class_weights or (1.0,) * 3
    return sum(of[label] for label in positions if label != task.ignore_index)


@pytest.mark.parametrize("name", TASKS)
def test_empirical_fisher_is_brute_force(name):
    task, network, x, y, _ = TASKS[name]()
    model = FlatModel(network)
    expected = by_hand(task, copy.deepcopy(network), x, y)
    rows = Eager(model, task=task).rows(model.w, 1)
    weights = torch.full((1, SAMPLES), 1 / SAMPLES)
    found = exact_fisher(rows, x[None], y[None], weights)
    assert torch.allclose(found[0], expected, rtol=1e-4, atol=1e-7)
    if name in CHAINS:
        batched = Batched(model, Chain.of(model.module), task=task).rows(model.w, 2)
        twice = exact_fisher(batched, x.expand(2, *x.shape), y.expand(2, *y.shape), weights.expand(2, -1))
        assert torch.allclose(twice, expected.expand(2, -1), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "own"])
def test_true_fisher_is_brute_force_with_drawn_targets(name):
    task, network, x, y, _ = TASKS[name]()
    model = FlatModel(network)
    rows = Eager(model, task=task).rows(model.w, 1)
    found = exact_fisher(rows, x[None], y[None], torch.full((1, SAMPLES), 1 / SAMPLES), "model", [5])
    with torch.no_grad():
        outputs = tensor_of(network(x))
    drawn = task.draw(outputs, y, torch.Generator().manual_seed(5))
    assert drawn.shape == y.shape
    expected = by_hand(task, copy.deepcopy(network), x, drawn)
    assert torch.allclose(found[0], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", [*CHAINS, "padded sequences", "next token"])
def test_running_fisher_is_brute_force(name):
    """B times the mean squared gradient of every fourth mini-batch."""
    task, network, x, y, loss = TASKS[name]()
    x, y = x.repeat(10, *[1] * (x.dim() - 1)), y.repeat(10, *[1] * (y.dim() - 1))
    federation = Federation.from_tensors(x, y, 2, "iid", classes=3)
    model = FlatModel(network)
    trainer = Trainer(Eager(model, task=task), federation, seed=0)
    work = trainer.work([Assignment(0, 6)], model.w, RoundSettings(0, 0.01, 6, 5, model.layout), {}, {})
    observer = SquaredGradients(work.W, 5)
    work.train(observer=observer)
    module, watched = copy.deepcopy(network), []
    optimiser = torch.optim.SGD(module.parameters(), 0.01)
    for number, chosen in enumerate(batch_indices(federation.train[0], 6, 5, stream(0, Purpose.BATCHES, 0, 0))):
        inputs, targets = federation.batch(torch.from_numpy(chosen))
        optimiser.zero_grad()
        loss(tensor_of(module(inputs)), targets).backward()
        if number % SquaredGradients.EVERY == 0:
            watched.append(flatten(p.grad for p in module.parameters()).square())
        optimiser.step()
    expected = 5 * torch.stack(watched).mean(0)
    assert torch.allclose(observer.mean(work.steps_done)[0], expected, rtol=1e-3, atol=1e-6)
    assert torch.allclose(work.W[0], flatten(module.parameters()), atol=1e-5)


@pytest.mark.parametrize(
    ("task", "variance"),
    [(Regression(), 0.5), (AbsoluteError(), 2.0), (Huber(delta=50.0), 1.0), (Huber(delta=0.7), None)],
)
def test_targets_are_drawn_from_the_likelihood(task, variance):
    """P ∝ exp(−loss): the mean of the loss's squared derivative is that of its second (two forms of Fisher)."""
    outputs = torch.full((200_000, 1), 3.0)
    drawn = task.draw(outputs, torch.zeros(200_000), torch.Generator().manual_seed(0))
    assert drawn.mean().item() == pytest.approx(3.0, abs=0.02)
    if variance is not None:
        assert drawn.var().item() == pytest.approx(variance, rel=0.02)
    else:  # Huber: |r| < δ has the mass of the middle of exp(−huber)
        grid = torch.linspace(-40, 40, 800_001, dtype=torch.float64)
        density = torch.exp(-task.losses(grid, torch.zeros_like(grid)))
        density /= density.sum()
        for limit in (0.3, 0.7, 2.0):
            expected = float(density[grid.abs() < limit].sum())
            assert ((drawn - 3).abs() < limit).float().mean().item() == pytest.approx(expected, abs=0.005)


def test_true_fisher_of_labels_meets_its_formula():
    """Of the bias of one logit among L: p(1 − p)/L²."""
    model = FlatModel(nn.Linear(1, 2))
    w = torch.tensor([0.0, 0.0, 0.5, -1.0])
    rows = rows_of("eager", model, 1, w)
    rows.task = MultiLabel()
    n = 4000
    found = exact_fisher(rows, torch.zeros(1, n, 1), torch.zeros(1, n, 2), torch.full((1, n), 1 / n), "model", [0])
    p = torch.sigmoid(w[2:])
    assert torch.allclose(found[0, 2:], p * (1 - p) / 4, rtol=0.05)


def test_own_losses_have_no_likelihood():
    rows = Eager(FlatModel(nn.Linear(4, 2)), task=OwnLoss(_fourth)).rows(torch.zeros(10), 1)
    with pytest.raises(UserError, match="no likelihood"):
        exact_fisher(rows, torch.zeros(1, 2, 4), torch.zeros(1, 2, 2), torch.ones(1, 2), "model", [0])


@pytest.mark.parametrize("name", CHAINS)
def test_batched_gradients_are_those_of_eager(name):
    task, network, x, y, _ = TASKS[name]()
    model = FlatModel(network)
    found = Batched(model, Chain.of(model.module), task=task).rows(model.w, 2)
    one = Eager(model, task=task).rows(model.w, 2)
    twice, targets = x.expand(2, *x.shape), y.expand(2, *y.shape)
    losses = [rows.gradient(2, twice, rows.targets(targets)) for rows in (found, one)]
    assert torch.allclose(*losses, atol=1e-6)
    assert torch.allclose(found.G, one.G, atol=1e-6)


def test_the_backend_is_the_first_that_knows_the_task(tiny):
    model = FlatModel(nn.Sequential(nn.Linear(4, 3)))
    assert type(select_backend(model, tiny, 4)) is Native
    assert type(select_backend(model, tiny, 4, task=Classification(class_weights=(1, 1, 2)))) is Batched
    recurrent = FlatModel(Sequences())
    padded = Federation.from_tensors(torch.randint(0, 5, (40, 6)), classes((40, 6), padded=True), 2, classes=3)
    assert type(select_backend(recurrent, padded, 4, task=Classification(ignore_index=-100))) is Eager


def test_metrics_by_hand():
    def measured(objective, outputs, y):
        pairs = objective.of_samples(outputs, y).sum(0)
        return {name: pairs[number].tolist() for number, name in enumerate(objective.metrics)}

    scores = torch.tensor([[[2.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    padded = Objective.of("cross_entropy", ["accuracy", "loss"], torch.tensor([[0, -100], [1, 1]]))
    found = measured(padded, scores, torch.tensor([[0, -100], [1, 1]]))
    assert found["accuracy"] == [1.0, 1.5]  # two of three positions, each half a sample
    assert found["loss"][0] / found["loss"][1] == pytest.approx(
        F.cross_entropy(scores.mT, torch.tensor([[0, -100], [1, 1]])).item()
    )
    labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    logits = torch.tensor([[1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]])
    found = measured(Objective.of("bce", ["accuracy", "f1"]), logits, labels)
    assert found["accuracy"] == pytest.approx([4 / 3, 2.0])
    assert found["f1"] == [4.0, 6.0]  # 2 hits; one label too many, one missed
    values = torch.tensor([[1.0], [5.0]])
    found = measured(Objective.of("mse", ["mse", "mae"]), values, torch.tensor([2.0, 3.0]))
    assert found == {"mse": [5.0, 2.0], "mae": [3.0, 2.0]}
    total, weight = METRICS.get("r2").total(Regression(), values, torch.tensor([2.0, 4.0]))
    assert total / weight == pytest.approx(1 - 2 / 2)


def test_a_clients_metric_sees_all_its_test_data_once():
    """Also where they are more than are computed at a time, and the model answers with several tensors."""
    seen = []

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x):
            return {"value": self.layer(x), "input": x}

    def spread(outputs, targets):
        seen.append(outputs["input"].squeeze(1))
        return targets.max() - targets.min()

    x = torch.arange(1500.0)[:, None]
    federation = Federation.from_tensors(x, x.squeeze(1), clients=2, test_fraction=0.5)
    objective = Objective.of(lambda o, y: F.mse_loss(o["value"].squeeze(1), y), {"spread": spread})
    model = FlatModel(Pair())
    trainer = Trainer(Eager(model, task=objective.task), federation, seed=0, metrics=objective.metrics)
    ((total, weight),) = trainer.measure_client(model.w, model.buffers, 1)
    assert weight == len(federation.test[1]) > 250
    assert total / weight == pytest.approx(float(np.ptp(federation.test[1])))
    (outputs,) = seen
    assert outputs.tolist() == federation.test[1].tolist()


def test_r2_is_unknown_where_targets_do_not_vary():
    r2 = Objective.of("mse", ["r2"])
    for targets in (torch.full((4, 1), 0.1), torch.tensor([[3.0]])):
        assert r2.of_client(torch.randn_like(targets), targets, 0).tolist() == [[0.0, 0.0]]
    assert r2.of_client(torch.zeros(2, 1), torch.tensor([[-1.0], [1.0]]), 0).tolist() == [[0.0, 2.0]]  # 1 − 2/2
