import pytest
import torch
from backends import rows_of
from torch import nn

from efl.models import FlatModel
from efl.models.vectors import flatten
from efl.training.tasks.classification import cross_entropies as sample_losses


class Twice(nn.Module):
    """A layer used twice, one used once, one never."""

    def __init__(self):
        super().__init__()
        self.again, self.head, self.idle = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.again(torch.tanh(self.again(x)))))


class Unheeded(nn.Module):
    """A layer that runs, but whose output nobody wants."""

    def __init__(self):
        super().__init__()
        self.head, self.vain = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        self.vain(x)
        return self.head(x)


class Sequences(nn.Module):
    """A linear layer over more than one dimension, one without a bias, a convolution."""

    def __init__(self):
        super().__init__()
        self.deep, self.bare, self.filters = nn.Linear(3, 4), nn.Linear(8, 5, bias=False), nn.Conv2d(1, 2, 2)
        self.head = nn.Linear(5 + 2 * 1 * 2, 3)

    def forward(self, x):
        pairs = x.view(len(x), 2, 3)
        deep = self.bare(torch.relu(self.deep(pairs)).flatten(1))
        return self.head(torch.cat([deep, self.filters(pairs.unsqueeze(1)).flatten(1)], 1))


@pytest.mark.parametrize("module", [Twice(), Unheeded(), Sequences()], ids=lambda module: type(module).__name__)
def test_gradients_are_those_of_autograd(module):
    model = FlatModel(module)
    rows = rows_of("eager", model, 2)
    rows.G.fill_(float("nan"))
    x, y = torch.randn(2, 8, 6), torch.randint(0, 3, (2, 8))
    rows.gradient(2, x, y)
    for row in range(2):
        loss = sample_losses(module(x[row]), y[row]).mean()
        expected = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, materialize_grads=True)
        assert torch.allclose(rows.G[row], flatten(expected), atol=1e-7)
    assert all(parameter.grad is None for parameter in model.parameters)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (Twice(), "eager"),
        (Unheeded(), "eager"),
        (Sequences(), "eager"),
        (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), "batched"),
        (nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3)), "batched"),
    ],
    ids=["twice", "unheeded", "sequences", "chain", "chain without a bias"],
)
def test_descending_is_subtracting_the_gradient(module, name):
    """Also where a layer's weight is used again after its own gradient is known."""
    model = FlatModel(module)
    rows, moved = (rows_of(name, model, 2) for _ in range(2))
    x, y = torch.randn(2, 8, 6), torch.randint(0, 3, (2, 8))
    losses = rows.gradient(2, x, y)
    assert torch.allclose(moved.descend(2, x, y, eta=0.3), losses)
    assert torch.allclose(moved.W, rows.W - 0.3 * rows.G, atol=1e-6)
    assert not torch.allclose(moved.W, rows.W, atol=1e-3)
    assert all(parameter.grad is None for parameter in model.parameters)
