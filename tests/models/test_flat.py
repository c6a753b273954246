import pytest
import torch
from torch import nn

from efl import UserError
from efl.models import FlatModel, Task, build


def test_frozen_parameters_are_left_out_and_stay_as_they_are():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    frozen = module[0].weight.clone()
    model = FlatModel(module)
    assert model.n == 15
    trained = model.module_at(torch.zeros(15), model.buffers)
    assert torch.equal(trained[0].weight, frozen)
    assert not trained[1].weight.any()


def test_batch_norm_statistics_are_a_vector_of_their_own():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model = FlatModel(module)
    assert model.buffer_layout.names == ("1.running_mean", "1.running_var")
    assert model.buffers.tolist() == [0.0] * 4 + [1.0] * 4


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
        ("lenet", Task((3, 32, 32), 100), 4_864 + 102_464 + 1600 * 384 + 384 + 384 * 192 + 192 + 192 * 100 + 100),
        ("cnn_unpadded", Task((3, 32, 32), 100), 2_432 + 51_264 + 1600 * 512 + 512 + 512 * 100 + 100),
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


@pytest.mark.parametrize(("name", "parameters"), [("vgg11_gn", 877_092 + 2 * 864), ("resnet_small", 552_228)])
def test_networks_with_group_normalisation_have_no_buffers(name, parameters):
    model = FlatModel(build(name, Task((3, 32, 32), 100, None), 0))
    assert model.n == parameters
    assert len(model.buffers) == 0
