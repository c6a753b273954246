"""Rows of any backend hold one model each, and no row knows of the others."""

import pytest
import torch
import torch.nn.functional as F
from backends import rows_of
from torch import nn

from efl.models import FlatModel, Task, build
from efl.training.backends.chain import Chain


class Skip(nn.Module):
    """Not a chain: runs row by row."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.b(x + torch.tanh(self.a(x)))


def plain_gradient(module, row, x, y):
    vector = row.clone()
    torch.nn.utils.vector_to_parameters(vector, module.parameters())
    loss = F.cross_entropy(module(x), y)
    return loss, torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("module", "name"),
    [(mlp(), "eager"), (mlp(), "batched"), (Skip(), "eager"), (nn.Linear(4, 3), "eager"), (nn.Linear(4, 3), "batched")],
)
def test_gradients_of_a_cohort_are_those_of_each_model_alone(module, name):
    model = FlatModel(module)
    rows = rows_of(name, model, 3)
    rows.W += torch.randn(3, model.n)
    x, y = torch.randn(3, 6, 4), torch.randint(0, 3, (3, 6))
    losses = rows.gradient(3, x, y)
    for row in range(3):
        loss, gradient = plain_gradient(module, rows.W[row], x[row], y[row])
        assert torch.allclose(losses[row], loss, atol=1e-6)
        assert torch.allclose(rows.G[row], gradient, atol=1e-6)


def test_only_the_first_rows_are_computed_when_the_others_are_finished():
    rows = rows_of("batched", FlatModel(nn.Linear(4, 3)), 3)
    rows.gradient(2, torch.randn(2, 5, 4), torch.randint(0, 3, (2, 5)))
    assert rows.G[:2].abs().sum() > 0
    assert not rows.G[2].any()


@pytest.mark.parametrize(("network", "pixels"), [("mlp", 8), ("linear", 28), ("mlp200", 28)])
def test_a_rows_result_does_not_depend_on_its_neighbours(network, pixels):
    """Bit for bit: so it is no matter in which order and company clients are run."""
    model = FlatModel(build(network, Task((1, pixels, pixels), 10), 0))
    x, y = torch.rand(10, 20, 1, pixels, pixels), torch.randint(0, 10, (10, 20))
    together = rows_of("batched", model, 10)
    together.gradient(10, x, y)
    for chosen in ([3], [9, 0], [5, 1, 7, 2]):
        apart = rows_of("batched", model, len(chosen))
        apart.gradient(len(chosen), x[chosen], y[chosen])
        assert torch.equal(apart.G, together.G[chosen])


def test_weights_are_views_of_one_vector():
    rows = rows_of("eager", FlatModel(nn.Linear(2, 2)), 1)
    module = rows.use(0, training=False)
    rows.W[0] = torch.arange(6.0)
    assert torch.equal(module(torch.tensor([[1.0, 10.0]])), torch.tensor([[10.0 + 4, 32.0 + 5]]))


def test_every_row_has_batch_norm_statistics_of_its_own():
    model = FlatModel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    rows = rows_of("eager", model, 2)
    rows.gradient(2, torch.randn(2, 16, 4) + 3, torch.randint(0, 3, (2, 16)))
    assert (rows.buffers != model.buffers).any(1).all()
    assert not torch.equal(rows.buffers[0], rows.buffers[1])


@pytest.mark.parametrize("name", ["eager", "batched"])
def test_the_users_module_is_not_touched(name):
    module = nn.Linear(4, 3)
    before = module.weight.clone()
    rows = rows_of(name, FlatModel(module), 1)
    rows.gradient(1, torch.randn(1, 5, 4), torch.randint(0, 3, (1, 5)))
    rows.W -= rows.G
    assert torch.equal(module.weight, before)


def frozen():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Linear(4, 3), nn.Dropout()),
        frozen(),
        Skip(),
    ],
    ids=["in place", "dropout", "frozen", "no chain"],
)
def test_networks_that_cannot_be_batched_run_row_by_row(module):
    assert Chain.of(FlatModel(module).module) is None
