"""Tasks people bring, written as they would write them: data of their own."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

import efl


class Patients(Dataset):
    """One hospital's measurements, read one by one."""

    def __init__(self, hospital, count=40):
        self.hospital, self.count, self.reads = hospital, count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.reads += 1
        rng = np.random.default_rng((self.hospital, i))
        return rng.normal(i % 2, 0.5, 6).astype(np.float32), i % 2


def test_own_dataset_per_client():
    hospitals = [Patients(h) for h in range(5)]
    federation = efl.Federation.from_datasets(hospitals)
    result = efl.train(federation, nn.Linear(6, 2), rounds=5, cohort=3)
    assert len(federation) == 5
    assert result.summary["bmta_global"] > 0.9


def test_own_dataset_per_client_lazily_loaded():
    hospitals = [Patients(h, count=10**5) for h in range(5)]
    held_out = [Patients(100 + h) for h in range(5)]
    federation = efl.Federation.from_datasets(hospitals, test=held_out, lazy=True, classes=2)
    result = efl.train(federation, nn.Linear(6, 2), "fedavg", rounds=5, cohort=3)
    assert result.summary["bmta_global"] > 0.9
    assert sum(hospital.reads for hospital in hospitals) < 9000  # of half a million


def test_lazy_data_train_the_same_model():
    hospitals, test = [Patients(h) for h in range(5)], Patients(100)
    at_once = efl.Federation.from_datasets(hospitals, test=test)
    lazy = efl.Federation.from_datasets(hospitals, test=test, lazy=True, classes=2)
    model, settings = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), {"rounds": 3, "cohort": 3}
    first, second = (efl.train(data, model, **settings).summary for data in (at_once, lazy))
    assert first["model_sha256"] == second["model_sha256"]
    assert first["bmta_global"] == second["bmta_global"]


def test_own_dataloader_per_client():
    loaders = [DataLoader(Patients(h), batch_size=8, shuffle=True) for h in range(4)]
    first_ten = SubsetRandomSampler(range(10))
    loaders.append(DataLoader(Patients(4), batch_size=8, sampler=first_ten))
    for lazy in (False, True):
        federation = efl.Federation.from_datasets(loaders, lazy=lazy, classes=2)
        assert [len(a) + len(b) for a, b in zip(federation.train, federation.test, strict=True)] == [40] * 4 + [10]
        assert efl.train(federation, nn.Linear(6, 2), rounds=5, cohort=3).summary["bmta_global"] > 0.9


def test_own_test_set():
    x, y = torch.randn(300, 4), torch.arange(300) % 3
    x += 3 * nn.functional.one_hot(y, 4)
    test_x, test_y = x[200:], y[200:]
    federation = efl.Federation.from_tensors(x[:200], y[:200], clients=10, test=(test_x, test_y))
    result = efl.train(federation, nn.Linear(4, 3), rounds=10, cohort=5)
    predicted = result.model(test_x).argmax(1)
    assert int(federation.sizes.sum()) == 200  # nothing is held out
    assert abs(result.summary["final_mean_accuracy"] - float((predicted == test_y).float().mean())) < 1e-6


def test_own_test_set_of_each_client():
    clients = [(torch.randn(20, 4) + k, torch.arange(20) % 2) for k in range(3)]
    tests = [(torch.randn(5 + k, 4) + k, torch.ones(5 + k).long()) for k in range(3)]
    federation = efl.Federation.from_clients(clients, test=tests)
    model = efl.train(federation, nn.Linear(4, 2), rounds=2, cohort=3).model
    for k, (x, y) in enumerate(tests):
        assert torch.equal(federation.x[torch.from_numpy(federation.test[k])], x)
        assert torch.equal(federation.y[torch.from_numpy(federation.test[k])], y)
    assert model(tests[0][0]).shape == (5, 2)


def test_transforms_at_training_time():
    pairs = TensorDataset(torch.randn(200, 1, 8, 8), torch.arange(200) % 2)
    seen = []

    def flip(x):  # (B, 1, 8, 8): one client's mini-batch
        seen.append(x.shape)
        return torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(-1), x)

    federation = efl.Federation.from_dataset(pairs, clients=5, augment=flip)
    efl.train(federation, "cnn", rounds=2, cohort=3, local_steps=4, batch_size=10, engine={"workers": 1})
    assert set(seen) == {(10, 1, 8, 8)}
