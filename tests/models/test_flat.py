import pytest
import torch
import torch.nn.functional as F
from torch import nn

from efl import UserError
from efl.models import FlatModel, Task, build


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


@pytest.mark.parametrize(
    "module", [nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), Skip(), nn.Linear(4, 3)]
)
@pytest.mark.parametrize("batched", [False, True])
def test_gradients_of_a_cohort_are_those_of_each_model_alone(module, batched):
    model = FlatModel(module)
    rows = model.rows(model.w, 3, batched=batched)
    rows.W += torch.randn(3, model.n)
    x, y = torch.randn(3, 6, 4), torch.randint(0, 3, (3, 6))
    losses = rows.gradient(3, x, y)
    for row in range(3):
        loss, gradient = plain_gradient(module, rows.W[row], x[row], y[row])
        assert torch.allclose(losses[row], loss, atol=1e-6)
        assert torch.allclose(rows.G[row], gradient, atol=1e-6)


def test_only_the_first_rows_are_computed_when_the_others_are_finished():
    model = FlatModel(nn.Linear(4, 3))
    rows = model.rows(model.w, 3, batched=True)
    rows.gradient(2, torch.randn(2, 5, 4), torch.randint(0, 3, (2, 5)))
    assert rows.G[:2].abs().sum() > 0
    assert not rows.G[2].any()


@pytest.mark.parametrize(("network", "pixels"), [("mlp", 8), ("linear", 28), ("mlp200", 28)])
def test_a_rows_result_does_not_depend_on_its_neighbours(network, pixels):
    """Bit for bit: so it is no matter in which order and company clients are run."""
    model = FlatModel(build(network, Task((1, pixels, pixels), 10), 0))
    x, y = torch.rand(10, 20, 1, pixels, pixels), torch.randint(0, 10, (10, 20))
    together = model.rows(model.w, 10, batched=True)
    together.gradient(10, x, y)
    for chosen in ([3], [9, 0], [5, 1, 7, 2]):
        apart = model.rows(model.w, len(chosen), batched=True)
        apart.gradient(len(chosen), x[chosen], y[chosen])
        assert torch.equal(apart.G, together.G[chosen])


def test_weights_are_views_of_one_vector():
    model = FlatModel(nn.Linear(2, 2))
    rows = model.rows(model.w, 1)
    module = rows.use(0, training=False)
    rows.W[0] = torch.arange(6.0)
    assert torch.equal(module(torch.tensor([[1.0, 10.0]])), torch.tensor([[10.0 + 4, 32.0 + 5]]))


def test_frozen_parameters_are_left_out_and_stay_as_they_are():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    frozen = module[0].weight.clone()
    model = FlatModel(module)
    assert model.n == 15
    assert model.chain is None
    trained = model.module_at(torch.zeros(15), model.buffers)
    assert torch.equal(trained[0].weight, frozen)
    assert not trained[1].weight.any()


def test_batch_norm_statistics_are_a_vector_of_their_own():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model = FlatModel(module)
    assert [spec.name for spec in model.buffer_layout] == ["1.running_mean", "1.running_var"]
    rows = model.rows(model.w, 2)
    rows.gradient(2, torch.randn(2, 16, 4) + 3, torch.randint(0, 3, (2, 16)))
    assert (rows.buffers != model.buffers).any(1).all()
    assert not torch.equal(rows.buffers[0], rows.buffers[1])


def test_the_users_module_is_not_touched():
    module = nn.Linear(4, 3)
    before = module.weight.clone()
    model = FlatModel(module)
    rows = model.rows(model.w, 1)
    rows.gradient(1, torch.randn(1, 5, 4), torch.randint(0, 3, (1, 5)))
    rows.W -= rows.G
    assert torch.equal(module.weight, before)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.ReLU(), "no trainable"),
        (nn.Linear(2, 2).double(), "float32"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(module, message):
    with pytest.raises(UserError, match=message):
        FlatModel(module)


def test_networks_respect_their_seed_and_leave_the_global_generator_alone():
    state = torch.get_rng_state()
    first, second, other = (FlatModel(build("cnn", Task((1, 8, 8), 10), seed)).w for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


DIGITS, MNIST, EMNIST = Task((1, 8, 8), 10), Task((1, 28, 28), 10), Task((1, 28, 28), 62)


@pytest.mark.parametrize(
    ("name", "task", "parameters"),
    [
        ("linear", DIGITS, 650),
        ("mlp", DIGITS, 17_226),
        ("mlp200", DIGITS, 55_210),
        ("cnn", DIGITS, 13_706),
        ("cnn", MNIST, 105_866),
        ("cnn_large", MNIST, 1_663_370),  # as in McMahan et al. 2017
        ("vgg11", Task((3, 32, 32), 10), 865_482),  # as in Sattler et al. 2019
        ("vgg11", Task((3, 32, 32), 100), 877_092),
        ("resnet50", EMNIST, 23_626_238),
        ("char_lstm", Task((80,), 97, 97), 97 * 8 + (8 + 256 + 2) * 1024 + (256 + 256 + 2) * 1024 + 257 * 97),
        ("sentiment_lstm", Task((32,), 2, 10_000), 640_000 + (64 + 64 + 2) * 256 + 65 * 2),
    ],
)
def test_parameter_counts(name, task, parameters):
    assert sum(p.numel() for p in build(name, task, 0).parameters()) == parameters


def test_resnet50_has_the_parameters_of_the_original_but_for_stem_and_classes():
    """25,557,032 for ImageNet: a 7 × 7 stem of 3 channels and 1000 classes; GroupNorm has as many as BatchNorm."""
    ours = sum(p.numel() for p in build("resnet50", EMNIST, 0).parameters())
    assert ours - 9 * 64 - 2049 * 62 == 25_557_032 - 49 * 3 * 64 - 2049 * 1000


@pytest.mark.parametrize(
    ("name", "task", "x", "shape"),
    [
        ("vgg11", Task((3, 32, 32), 7), torch.randn(2, 3, 32, 32), (2, 7)),
        ("resnet50", Task((1, 28, 28), 5), torch.randn(2, 1, 28, 28), (2, 5)),
        ("char_lstm", Task((12,), 9, 9), torch.randint(0, 9, (2, 12)), (2, 12, 9)),
        ("sentiment_lstm", Task((6,), 2, 50), torch.randint(0, 50, (2, 6)), (2, 2)),
    ],
)
def test_networks_start_sensibly(name, task, x, shape):
    """The first answers are near even odds: neither dead nor wild."""
    model = FlatModel(build(name, task, 0))
    outputs = model.outputs(model.w, model.buffers, x)
    assert outputs.shape == shape
    assert 1e-4 < outputs.std() < 3
    assert torch.equal(model.w, FlatModel(build(name, task, 0)).w)


def test_padding_does_not_change_a_sentiment():
    network = build("sentiment_lstm", Task((6,), 2, 50), 0)
    short = torch.tensor([[3, 4, 5, 0, 0, 0]])
    assert torch.allclose(network(short), network(short[:, :3]), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("vgg11", Task((1, 28, 28), 10), "images .* of 32 × 32 or more"),
        ("cnn", Task((80,), 97, 97), "needs images"),
        ("char_lstm", Task((1, 28, 28), 10), "needs sequences of tokens"),
        ("mlp", Task((80,), 97, 97), "needs numbers, but samples are text"),
    ],
)
def test_networks_that_do_not_suit_the_data_say_so(name, task, message):
    with pytest.raises(UserError, match=message):
        build(name, task, 0)


@pytest.mark.parametrize(
    "module", [nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True)), nn.Sequential(nn.Linear(4, 3), nn.Dropout())]
)
def test_networks_that_cannot_be_batched_run_row_by_row(module):
    assert FlatModel(module).chain is None
