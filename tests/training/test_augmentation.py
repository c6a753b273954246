"""Train-time transforms: which batches they see, with which random numbers, and where they leave things alone."""

from contextlib import suppress

import pytest
import torch
from stopping import StopAt
from torch import nn

import efl
from efl.rng import Purpose, stream
from efl.training.augmentation import Augmentation

SETTINGS = {"rounds": 6, "cohort": 4, "local_steps": 5, "batch_size": 6}
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def noisy(x):
    return x + 0.3 * torch.randn_like(x)


def digest(federation, model="linear", **more):
    return efl.train(federation, model, "efl", efl.Fleet(stragglers=0.5), **SETTINGS, **more).summary["model_sha256"]


def test_a_client_draws_from_its_own_stream_step_by_step():
    x = torch.zeros(2, 3, 4)  # two clients, three samples of four features
    augment = Augmentation(noisy, seed=7, round_=5, clients=[8, 2], steps=4)
    for row, client in enumerate((8, 2)):
        seeds = stream(7, Purpose.AUGMENTATION, 5, client).integers(2**63, size=4)
        for step in (3, 0):
            generator = torch.Generator().manual_seed(int(seeds[step]))
            expected = 0.3 * torch.randn(3, 4, generator=generator)
            assert torch.equal(augment(x, step)[row], expected)
    longer = Augmentation(noisy, seed=7, round_=5, clients=[8], steps=40)  # beside a client that does more steps
    assert torch.equal(longer(x[:1], 2), augment(x, 2)[:1])


def test_the_generator_of_the_caller_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    Augmentation(noisy, 0, 0, [1], 1)(torch.zeros(1, 2, 2), 0)
    assert torch.equal(torch.rand(2), expected)


def test_what_a_transform_does_in_place_stays_in_the_batch():
    augment, x = Augmentation(lambda batch: batch.add_(1), 0, 0, [1], 1), torch.zeros(1, 2, 2)
    assert augment(x, 0).sum() == 4
    assert x.sum() == 0


def test_inputs_by_name():
    x = {"a": torch.zeros(2, 3, 4), "b": torch.ones(2, 3).long()}
    found = Augmentation(lambda batch: {"a": noisy(batch["a"]), "b": batch["b"]}, 7, 5, [8, 2], 1)(x, 0)
    assert torch.equal(found["a"], Augmentation(noisy, 7, 5, [8, 2], 1)(x["a"], 0))
    assert torch.equal(found["b"], x["b"])


@pytest.mark.parametrize("model", ["linear", "cnn"])
def test_neither_workers_nor_rows_change_the_result(digits, model):
    augmented = digits.augmented(noisy)
    expected = digest(augmented, model, engine={"workers": 1})
    assert expected == digest(augmented, model, engine={"workers": 1, "rows": 1})
    assert expected == digest(augmented, model, engine={"workers": 2})
    assert expected != digest(digits, model)


def test_a_resumed_run_draws_the_same(digits, tmp_path):
    augmented, settings = digits.augmented(noisy), {**SETTINGS, "rounds": 14}
    whole = efl.train(augmented, "cnn", **settings).summary["model_sha256"]
    with suppress(KeyboardInterrupt):
        efl.train(augmented, "cnn", out=tmp_path / "run", callbacks=[StopAt(11)], **settings)
    assert efl.resume(tmp_path / "run", federation=augmented).summary["model_sha256"] == whole


def test_a_transform_that_changes_nothing_changes_no_bit(digits):
    assert digest(digits.augmented(lambda x: x), "cnn") == digest(digits, "cnn")


def test_tests_see_inputs_as_they_are(digits):
    """A transform that blackens everything: the gradient of a linear layer's weight is zero, tests go on as before."""
    federation = digits.augmented(torch.zeros_like)
    result = efl.train(federation, LINEAR, "fedavg", evaluate_every=1, **SETTINGS)
    assert torch.allclose(result.model[1].weight, LINEAR[1].weight, atol=1e-6)  # averages are rounded
    assert not torch.allclose(result.model[1].bias, LINEAR[1].bias, atol=1e-2)
    correct = [
        result.model(x).argmax(1).eq(y).float().mean()
        for x, y in (federation.batch(torch.from_numpy(test)) for test in federation.test)
    ]
    assert result.summary["final_mean_accuracy"] == pytest.approx(float(torch.stack(correct).mean()), abs=1e-6)


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (lambda x: x[:3], r"augment makes \(3, 1, 8, 8\) of torch.float32 of a batch \(6, 1, 8, 8\)"),
        (lambda x: None, "augment makes NoneType"),
        (lambda x: x @ torch.zeros(3, 3), r"augment fails on a batch \(6, 1, 8, 8\) of torch.float32: "),
    ],
)
def test_transforms_that_do_not_fit_are_refused_before_anything_is_trained(digits, augment, message):
    with pytest.raises(efl.UserError, match=message):
        efl.train(digits.augmented(augment), "linear", **SETTINGS)
