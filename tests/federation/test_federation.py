import numpy as np
import pytest
import torch

from efl import Federation, UserError, load


def test_digits_has_all_its_samples_in_the_right_shape():
    federation = load("digits", clients=50, partition="classes:2")
    assert federation.input_shape == (1, 8, 8)
    assert federation.classes == 10
    assert sum(map(len, federation.train)) + sum(map(len, federation.test)) == 1797
    assert (federation.x.min(), federation.x.max()) == (0.0, 1.0)


def test_synthetic_is_as_fedprox_describes_it():
    federation = load("synthetic:1,1", clients=30, seed=3)
    assert federation.input_shape == (60,)
    assert len(federation) == 30
    totals = np.array([len(a) + len(b) for a, b in zip(federation.train, federation.test, strict=True)])
    assert totals.min() >= 50
    assert totals.max() > 5 * np.median(totals)  # log-normal: a few clients hold most samples
    variances = torch.stack([federation.x[i].var(0) for i in federation.train if len(i) > 300]).mean(0)
    expected = torch.arange(1, 61) ** -1.2
    assert torch.allclose(variances, expected, rtol=0.35)
    for train, test in zip(federation.train, federation.test, strict=True):
        assert set(federation.y[train].tolist()) == set(federation.y[test].tolist())


def test_synthetic_clients_are_alike_at_zero_and_unlike_at_one():
    def spread(dataset):
        federation = load(dataset, clients=20, seed=1)
        means = torch.stack([federation.x[train].mean(0) for train in federation.train])
        return float(means.mean(1).std())

    assert spread("synthetic:1,1") > 2 * spread("synthetic:0,0")


def test_from_clients_keeps_each_clients_data_apart():
    data = [(torch.full((10, 2), float(k)), torch.arange(10) % 2) for k in range(3)]
    federation = Federation.from_clients(data)
    for client in range(3):
        indices = np.concatenate([federation.train[client], federation.test[client]])
        assert len(indices) == 10
        assert (federation.x[indices] == client).all()


def test_nan_in_the_data_is_refused():
    x = torch.randn(40, 3)
    x[7, 1] = float("nan")
    with pytest.raises(UserError, match="NaN or infinity in 1 of 40 samples"):
        Federation.from_tensors(x, torch.arange(40) % 2, clients=2)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(4, 2), torch.zeros(3, dtype=torch.long), "4 samples but 3 labels"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "no samples"),
        (torch.zeros(8, 2), torch.zeros(8, 2, 2, dtype=torch.long), "labels have shape"),
        (torch.zeros(8, 2), torch.tensor([0, -1] * 4), "labels must lie in"),
    ],
)
def test_bad_tensors_are_refused(x, y, message):
    with pytest.raises((UserError, ValueError), match=message):
        Federation.from_tensors(x, y, clients=2)


def test_a_client_without_samples_is_refused():
    with pytest.raises(UserError, match="client 1 has 0 samples"):
        Federation.from_clients([(torch.zeros(4, 2), torch.arange(4) % 2), (torch.zeros(0, 2), torch.zeros(0).long())])
    with pytest.raises(UserError, match="client 0 has 1 training and 0 test samples"):
        Federation(torch.zeros(1, 2), torch.zeros(1).long(), [np.array([0])], [np.array([], dtype=np.int64)], 1)


@pytest.mark.parametrize("name", ["synthetic", "synthetic:1", "synthetic:1,x", "synthetic:-1,0", "mnist9", "digits:3"])
def test_unknown_data_sets_are_refused(name):
    with pytest.raises(UserError, match="dataset"):
        load(name)
