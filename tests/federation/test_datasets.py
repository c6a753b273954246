"""A dataset per client: read at once or lazily, with test sets; and what is refused in one line."""

import re

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from efl import Federation, UserError, train


class Counted(Dataset):
    """Items whose first feature is their client, the second their number; remembers what was read."""

    def __init__(self, client, count=10, wrong=None):
        self.client, self.count, self.wrong, self.read = client, count, wrong or {}, []

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.read.append(i)
        return self.wrong.get(i, (torch.tensor([float(self.client), float(i)]), i % 2))


def test_lazy_and_at_once_hold_the_same_items():
    sets, tests = [Counted(k, 6 + k) for k in range(3)], [Counted(10 + k, 2) for k in range(3)]
    at_once = Federation.from_datasets(sets, test=tests)
    lazy = Federation.from_datasets(sets, test=tests, lazy=True, classes=2)
    assert lazy.sizes.tolist() == at_once.sizes.tolist() == [6, 7, 8]
    for client in range(3):
        for one, other in ((lazy.train, at_once.train), (lazy.test, at_once.test)):
            (x, y), (a, b) = (f.batch(torch.from_numpy(i[client])) for f, i in ((lazy, one), (at_once, other)))
            assert torch.equal(x, a)
            assert torch.equal(y, b)
    assert (lazy.class_counts() == at_once.class_counts()).all()
    alone = lazy.only(1)
    assert alone.x.tolist() == [[1.0, float(i)] for i in range(7)] + [[11.0, 0.0], [11.0, 1.0]]


def test_lazy_items_are_read_when_needed_and_those_read_last_are_kept(monkeypatch):
    monkeypatch.setattr("efl.federation.lazy.CACHE_BYTES", 3 * 16)  # two floats and a whole number each
    data = Counted(0)
    federation = Federation.from_datasets([data], lazy=True, classes=2)
    data.read.clear()
    federation.batch(torch.tensor([4, 7]))  # inputs and labels
    assert data.read == [4, 7]
    federation.batch(torch.tensor([4, 1, 2, 4, 7]))
    assert data.read == [4, 7, 1, 2, 7, 1, 2, 7]  # no more than three are kept


def test_lazy_data_are_told_from_others_by_their_first_items():
    def fingerprint(*clients, count=10):
        return Federation.from_datasets([Counted(k, count) for k in clients], lazy=True, classes=2).fingerprint

    assert fingerprint(1, 2) == fingerprint(1, 2)
    assert fingerprint(1, 2) != fingerprint(1, 3)
    assert fingerprint(1, 2) != fingerprint(1, 2, count=11)


def test_lazy_data_with_workers_and_resumed(tmp_path):
    federation = Federation.from_datasets([Counted(k) for k in range(4)], lazy=True, classes=2)
    settings = {"rounds": 3, "cohort": 3, "local_steps": 3, "batch_size": 4}
    first = train(federation, "linear", engine={"workers": 1}, out=tmp_path / "run", **settings)
    second = train(federation, "linear", engine={"workers": 2}, **settings)
    assert first.summary["model_sha256"] == second.summary["model_sha256"]


def test_a_loader_counts_for_its_items_and_collate_function():
    def doubled(items):
        x, y = torch.utils.data.default_collate(items)
        return 2 * x, y

    loader = DataLoader(Counted(3), batch_size=4, shuffle=True, drop_last=True, collate_fn=doubled)
    for lazy in (False, True):
        torch.manual_seed(5)
        federation = Federation.from_datasets([loader], lazy=lazy, classes=2)
        everything = torch.from_numpy(np.sort(np.concatenate([federation.train[0], federation.test[0]])))
        assert federation.x[everything].tolist() == [[6.0, 2.0 * i] for i in range(10)]
        assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(5))  # nothing was drawn


def test_one_test_set_for_all_is_evaluated_once(monkeypatch):
    from efl.training.trainer import Trainer

    evaluated, measure = [], Trainer.measure

    def watched(self, w, buffers, samples):
        evaluated.extend(samples.tolist())
        return measure(self, w, buffers, samples)

    monkeypatch.setattr(Trainer, "measure", watched)
    federation = Federation.from_datasets([Counted(k) for k in range(4)], test=Counted(9, 30))
    train(federation, "linear", rounds=1, cohort=2, evaluate_personalised_every="never", engine={"workers": 1})
    assert sorted(evaluated) == list(range(40, 70))


class Sum(torch.nn.Module):
    """Takes two arguments by name."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = torch.nn.Embedding(9, 2), torch.nn.Linear(2, 2)

    def forward(self, tokens, weights):
        return self.linear((self.embedding(tokens) * weights[..., None]).sum(1))


class Named(Dataset):
    """Items of several tensors by name, in one of the usual forms."""

    def __init__(self, client, form, wrong=None):
        generator = torch.Generator().manual_seed(client)
        self.tokens, self.weights = (
            torch.randint(9, (10, 3), generator=generator),
            torch.rand(10, 3, generator=generator),
        )
        self.form, self.wrong = form, wrong or {}

    def __len__(self):
        return 10

    def __getitem__(self, i):
        parts = {"tokens": self.tokens[i], "weights": self.weights[i]}
        return self.wrong.get(i, (parts, i % 2) if self.form == "pair" else {**parts, "labels": i % 2})


@pytest.mark.parametrize("form", ["pair", "labels"])
@pytest.mark.parametrize("wrap", [lambda dataset: dataset, DataLoader], ids=["dataset", "loader"])
@pytest.mark.parametrize("lazy", [False, True])
def test_samples_of_several_tensors_are_those_of_from_tensors(form, wrap, lazy):
    sets = [Named(client, form) for client in range(3)]
    tests = [Named(client + 10, form) for client in range(3)]
    federation = Federation.from_datasets(list(map(wrap, sets)), test=list(map(wrap, tests)), lazy=lazy, classes=2)
    parts = {name: torch.cat([getattr(one, name) for one in [*sets, *tests]]) for name in ("tokens", "weights")}
    x, y = federation.batch(torch.arange(60))
    assert x.keys() == parts.keys()
    assert all(torch.equal(x[name], part) and x[name].dtype == part.dtype for name, part in parts.items())
    assert y.tolist() == [0, 1] * 30
    assert train(federation, Sum(), rounds=1, cohort=2, batch_size=4).summary["rounds"] == 1


def test_one_dataset_of_several_tensors_is_dealt_out():
    dataset = Named(0, "labels")
    federation = Federation.from_dataset(dataset, clients=2, inputs=lambda x: x["weights"])
    assert torch.equal(federation.batch(torch.arange(10))[0], dataset.weights)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("item", "message"),
    [
        (({"tokens": torch.tensor([1]), "weights": torch.rand(3)}, 0), "item 3 of client 1: it has tokens (1,) of "),
        (
            {"tokens": torch.tensor([1])},
            "item 3 of client 1 is no (x, y) pair but a dictionary of tokens; return (x, y)",
        ),
        (({"tokens": "some text"}, 0), "item 3 of client 1: "),
        (7, "item 3 of client 1 is no (x, y) pair but int; return (x, y) from __getitem__ or collate_fn"),
    ],
)
def test_an_item_of_several_tensors_that_does_not_fit_names_its_client(item, message, lazy):
    sets = [Named(0, "pair"), Named(1, "pair", {3: item})]
    with pytest.raises(UserError, match=re.escape(message)):
        Federation.from_datasets(sets, lazy=lazy, classes=2).batch(torch.arange(20))


class Unreadable(Counted):
    """Has a file missing."""

    def __getitem__(self, i):
        if i == 3:
            raise OSError("no such file: 3.png")
        return super().__getitem__(i)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_item_that_cannot_be_read_is_named_with_its_client(workers):
    federation = Federation.from_datasets([Counted(0), Unreadable(1)], lazy=True, classes=2)
    with pytest.raises(UserError, match=r"item 3 of client 1 cannot be read: OSError: no such file: 3.png$"):
        train(federation, "linear", rounds=9, cohort=2, batch_size=10, engine={"workers": workers})
    with pytest.raises(UserError, match="item 3 of client 1 cannot be read: OSError"):
        Federation.from_datasets([Counted(0), Unreadable(1)])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.tensor([1.0]), 0), "client 1, item 3 has shape (1,) of torch.float32, the first item (2,)"),
        ((torch.tensor([1.0, float("nan")]), 0), "client 1, item 3: the data have NaN or infinity"),
        (
            (torch.tensor([1.0, 2.0]), 5),
            "client 1, item 3: labels must lie in 0 … 1, or be -100 for padding",
        ),
    ],
)
def test_a_lazy_item_that_does_not_fit_names_its_client(item, message):
    federation = Federation.from_datasets([Counted(0), Counted(1, wrong={3: item})], lazy=True, classes=2)
    with pytest.raises(UserError, match=re.escape(message)):
        train(federation, "linear", rounds=9, cohort=2, batch_size=10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Federation.from_datasets([Counted(0), Counted(1, 0)]),
            "client 1 has no samples; leave it out, or give",
        ),
        (
            lambda: Federation.from_datasets([Counted(0), Counted(1, 0)], lazy=True, classes=2),
            "client 1 has no samples; leave it out, or give it some",
        ),
        (lambda: Federation.from_datasets([Counted(0), iter([])]), "client 1 has no length"),
        (lambda: Federation.from_datasets([Counted(0)], lazy=True), "say how many classes there are: classes=…"),
        (lambda: Federation.from_datasets([Counted(0, 1)]), "client 0 has 1 training and 0 test samples"),
        (
            lambda: Federation.from_datasets([Counted(0)] * 3, test=[Counted(0)] * 2),
            "2 test sets for 3 clients; pass one (x, y) for all, or a list of one each",
        ),
        (
            lambda: Federation.from_datasets([Counted(0)] * 3, test=[Counted(0)] * 2, lazy=True, classes=2),
            "2 test sets for 3 clients",
        ),
        (
            lambda: Federation.from_datasets([DataLoader(Counted(0), sampler=WeightedRandomSampler([1.0] * 10, 5))]),
            "client 0 is a DataLoader with a WeightedRandomSampler, which has no fixed samples; pass its dataset",
        ),
        (
            lambda: Federation.from_clients([(torch.zeros(4, 2), torch.zeros(4)), (torch.zeros(0, 2), torch.zeros(0))]),
            "client 1 has 0 samples and 0 labels; leave it out, or give it some",
        ),
        (
            lambda: Federation.from_clients(
                [(torch.zeros(4, 2), torch.arange(4) % 2)], test=[(torch.zeros(4, 3), torch.arange(4) % 2)]
            ),
            "the test set of client 0 has samples (3,) of torch.float32",
        ),
        (
            lambda: Federation.from_dataset(
                TensorDataset(torch.zeros(8, 2), torch.arange(8) % 2), clients=2, test=Counted(0, 0)
            ),
            "the test set has no samples",
        ),
        (lambda: Federation.from_datasets([]), "the federation has no clients"),
        (lambda: Federation.from_datasets([], lazy=True, classes=2), "the federation has no clients"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(make, message):
    with pytest.raises(UserError) as refused:
        make()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
