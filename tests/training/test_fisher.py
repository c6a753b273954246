import pytest
import torch
from backends import rows_of
from torch import nn

from efl.models import FlatModel, Task, build
from efl.models.vectors import flatten
from efl.training.fisher import exact_fisher
from efl.training.tasks.classification import cross_entropies as sample_losses


def by_hand(model, w, x, y, weights):
    """Sample by sample, the slow and obvious way."""
    module = model.module_at(w, model.buffers)
    total = torch.zeros(model.n)
    for sample, label, weight in zip(x, y, weights, strict=True):
        loss = sample_losses(module(sample[None]), label[None]).sum()
        gradient = flatten(torch.autograd.grad(loss, list(module.parameters())))
        total += weight * gradient.square()
    return total


@pytest.mark.parametrize(
    ("module", "shape", "name"),
    [
        (build("mlp", Task((1, 8, 8), 10), 0), (1, 8, 8), "batched"),
        (build("mlp", Task((1, 8, 8), 10), 0), (1, 8, 8), "eager"),
        (build("cnn", Task((1, 8, 8), 10), 0), (1, 8, 8), "eager"),
        (nn.Linear(5, 10), (5,), "batched"),
        (nn.Sequential(nn.Conv2d(2, 3, (3, 2), 2, bias=False), nn.Flatten(), nn.Linear(60, 10)), (2, 9, 10), "eager"),
        (nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 10)), (3, 5), "eager"),
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 10)), (2, 4, 4), "eager"),
    ],
)
def test_exact_fisher_is_the_mean_of_squared_sample_gradients(module, shape, name):
    model = FlatModel(module)
    rows = rows_of(name, model, 2)
    rows.W[1] += 0.1
    x, y = torch.randn(2, 7, *shape), torch.randint(0, 10, (2, 7))
    weights = torch.rand(2, 7)
    fisher = exact_fisher(rows, x, y, weights)
    for row in range(2):
        expected = by_hand(model, rows.W[row], x[row], y[row], weights[row])
        assert torch.allclose(fisher[row], expected, rtol=1e-3, atol=1e-7)


def test_exact_fisher_of_a_network_that_cannot_be_vectorised():
    """An LSTM with a label at every position goes sample by sample; labels may be drawn, one a position."""
    model = FlatModel(build("char_lstm", Task((5,), 7, 7), 0))
    rows = rows_of("eager", model, 1)
    x, y, weights = torch.randint(0, 7, (1, 3, 5)), torch.randint(0, 7, (1, 3, 5)), torch.tensor([[0.5, 0.5, 0.0]])
    fisher = exact_fisher(rows, x, y, weights)
    assert torch.allclose(fisher[0], by_hand(model, model.w, x[0], y[0], weights[0]), rtol=1e-3, atol=1e-9)
    drawn = exact_fisher(rows, x, y, weights, "model", [0])
    assert drawn.shape == fisher.shape
    assert not torch.equal(drawn, fisher)


@pytest.mark.parametrize("name", ["batched", "eager"])
def test_true_fisher_of_logistic_regression_meets_its_formula(name):
    """E over labels of the squared gradient by the bias of class c is p_c (1 − p_c)."""
    model = FlatModel(nn.Linear(1, 3))
    w = torch.tensor([0.0, 0.0, 0.0, 0.5, 0.0, -1.0])
    rows = rows_of(name, model, 1, w)
    samples = 20000
    x, y, weights = (
        torch.zeros(1, samples, 1),
        torch.zeros(1, samples, dtype=torch.long),
        torch.full((1, samples), 1 / samples),
    )
    p = torch.softmax(w[3:], 0)
    if name == "eager":
        x, y, weights = x[:, :2000], y[:, :2000], torch.full((1, 2000), 1 / 2000)
    fisher = exact_fisher(rows, x, y, weights, "model", [0])[0, 3:]
    assert torch.allclose(fisher, p * (1 - p), atol=0.02)


def test_true_fisher_labels_come_from_the_seed():
    model = FlatModel(build("linear", Task((4,), 3), 0))
    rows = rows_of("batched", model, 1, torch.randn(model.n))
    x, y, weights = torch.randn(1, 30, 4), torch.zeros(1, 30, dtype=torch.long), torch.full((1, 30), 1 / 30)
    first, again, other = (exact_fisher(rows, x, y, weights, "model", [seed]) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
