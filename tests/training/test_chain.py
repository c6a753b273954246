import pytest
import torch
from backends import rows_of
from torch import nn

from efl.models import FlatModel
from efl.training.backends.chain import ACTIVATIONS
from efl.training.tasks.classification import cross_entropies as sample_losses


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_derivatives_are_those_of_autograd(activation):
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), activation(), nn.Linear(5, 4, bias=False), activation())
    model = FlatModel(module)
    rows = rows_of("batched", model, 3)
    rows.W += torch.randn(3, model.n)
    x, y = torch.randn(3, 8, 2, 3), torch.randint(0, 4, (3, 8))
    losses = rows.gradient(3, x, y)
    for row in range(3):
        alone = rows_of("eager", model, 1, rows.W[row])
        loss = sample_losses(alone.use(0, training=True)(x[row]), y[row]).mean()
        gradients = torch.autograd.grad(loss, model.parameters)
        assert torch.allclose(losses[row], loss, atol=1e-6)
        assert torch.allclose(rows.G[row], torch.cat([g.reshape(-1) for g in gradients]), atol=1e-6)


def test_a_layer_with_many_inputs_and_few_outputs_is_no_different():
    model = FlatModel(nn.Linear(600, 7))
    x, y = torch.randn(2, 9, 600), torch.randint(0, 7, (2, 9))
    together, alone = (rows_of(name, model, 2) for name in ("batched", "eager"))
    assert torch.allclose(together.gradient(2, x, y), alone.gradient(2, x, y), atol=1e-6)
    assert torch.allclose(together.G, alone.G, atol=1e-6)


def test_every_activation_with_settings_of_its_own_keeps_them():
    for layer in (nn.LeakyReLU(0.3), nn.ELU(0.5), nn.GELU("tanh"), nn.Softplus(2.0, 5.0)):
        model = FlatModel(nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 3)))
        x, y = torch.randn(1, 9, 4), torch.randint(0, 3, (1, 9))
        together, alone = (rows_of(name, model, 1) for name in ("batched", "eager"))
        together.gradient(1, x, y)
        alone.gradient(1, x, y)
        assert torch.allclose(together.G, alone.G, atol=1e-6)
