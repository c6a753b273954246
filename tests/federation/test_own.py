"""A user's own data: PyTorch datasets, Hugging Face datasets, partitioners of flwr-datasets."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import efl
from efl import Federation, UserError


def test_a_tensor_dataset():
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    federation = Federation.from_dataset(TensorDataset(x, y), clients=4, partition="classes:2")
    assert torch.equal(federation.x, x)
    assert torch.equal(federation.y, y)


class Pictures(Dataset):
    """PIL images, as torchvision's data sets give them."""

    def __init__(self, mode):
        self.mode = mode

    def __len__(self):
        return 20

    def __getitem__(self, position):
        from PIL import Image

        colour = position if self.mode == "L" else (position, 0, 255)
        return Image.new(self.mode, (6, 4), colour), position % 2


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_pictures_stay_bytes_with_their_channels_first(mode, channels):
    federation = Federation.from_dataset(Pictures(mode), clients=2)
    assert federation.x.dtype == torch.uint8
    assert federation.input_shape == (channels, 4, 6)
    assert (federation.x[7, 0] == 7).all()
    x, _ = federation.batch(torch.tensor([7]))
    assert x[0, 0, 0, 0].item() == pytest.approx(7 / 255)


def test_owners_may_be_names_and_settle_partition_and_clients():
    owners = np.array(["bo", "al", "cy"] * 10)
    federation = Federation.from_tensors(torch.randn(30, 2), torch.arange(30) % 2, owners=owners)
    assert len(federation) == 3
    whose = [set(owners[np.concatenate(pair)]) for pair in zip(federation.train, federation.test, strict=True)]
    assert whose == [{"al"}, {"bo"}, {"cy"}]


def test_sequences_with_a_label_at_every_position_train_end_to_end():
    tokens = torch.arange(40).remainder(7).repeat(30, 1)
    federation = Federation.from_tensors(tokens[:, :-1].int(), tokens[:, 1:], clients=3, vocabulary=7)
    result = efl.train(
        federation, "char_lstm", efl.FedAvg(), rounds=3, cohort=2, local_steps=10, batch_size=8, learning_rate=2.0
    )
    assert result.summary["bmta_global"] > 2 / 7


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([1, 2, 3], r"item 0 of the dataset is no \(x, y\) pair but int"),
        ([], "no samples"),
        (iter([]), "has no length"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 1)], r"differ in shape, such as \(2,\) and \(3,\)"),
    ],
)
def test_datasets_that_do_not_fit(dataset, message):
    with pytest.raises(UserError, match=message):
        Federation.from_dataset(dataset, clients=1)


def test_labels_of_a_dataset_are_judged_as_those_of_tensors():
    real = TensorDataset(torch.randn(6, 2), torch.rand(6))
    assert Federation.from_dataset(real, clients=2).y.dtype == torch.float32
    with pytest.raises(UserError, match="needs one label per sample"):
        Federation.from_dataset(real, clients=2, partition="dirichlet:1")
    words = [(torch.zeros(2), "cat"), (torch.zeros(2), "dog")]
    with pytest.raises(UserError, match="'cat' is neither numbers nor an image"):
        Federation.from_dataset(words, clients=1)
    positions = TensorDataset(torch.zeros(8, 3).long(), torch.zeros(8, 3).long())
    assert Federation.from_dataset(positions, clients=2).y.shape == (8, 3)


@pytest.mark.parametrize(
    ("x", "y", "more", "message"),
    [
        (torch.full((8, 2), 9), torch.arange(8) % 2, {"vocabulary": 5}, "tokens must lie in 0 … 4, found 9 … 9"),
        (torch.zeros(8, 2), torch.arange(8) % 2, {"vocabulary": 5}, "must be whole numbers"),
        (torch.zeros(8, 2), torch.full((8,), 10**12), {}, "labels must lie in 0 … classes-1"),
        (torch.zeros(8, 2), ["a"] * 8, {}, "the labels are no numbers"),
        (torch.full((8, 2), 1e300, dtype=torch.float64), torch.arange(8) % 2, {}, "NaN or infinity"),
    ],
)
def test_tensors_that_do_not_fit(x, y, more, message):
    with pytest.raises(UserError, match=message):
        Federation.from_tensors(x, y, clients=2, **more)


def test_bytes_with_a_vocabulary_are_tokens():
    federation = Federation.from_tensors(
        torch.ones(8, 2, dtype=torch.uint8), torch.arange(8, dtype=torch.uint8) % 2, clients=2, vocabulary=5
    )
    assert federation.batch(torch.arange(2))[0].dtype == torch.int64


def test_clients_whose_data_are_unlike_in_kind_are_refused():
    y = torch.arange(4) % 2
    with pytest.raises(UserError, match="client 1 has samples"):
        Federation.from_clients([(torch.zeros(4, 2, dtype=torch.uint8), y), (torch.zeros(4, 2), y)])


def test_a_palette_is_looked_up():
    from PIL import Image

    red = Image.new("RGB", (2, 2), (255, 0, 0)).convert("P")
    federation = Federation.from_dataset([(red, 0), (red, 0), (red, 1), (red, 1)], clients=1)
    assert federation.x[0, :, 0, 0].tolist() == [255, 0, 0]


def test_owners_and_clients_that_do_not_fit():
    x, y = torch.zeros(10, 2), torch.arange(10) % 2
    with pytest.raises(UserError, match="10 samples but 3 owners"):
        Federation.from_tensors(x, y, owners=[1, 2, 3])
    with pytest.raises(UserError, match="say how many clients"):
        Federation.from_tensors(x, y)


# Hugging Face


@pytest.fixture
def table():
    datasets = pytest.importorskip("datasets")
    columns = {
        "writer": [f"w{i % 4}" for i in range(40)],
        "image": [np.full((5, 5), i, dtype=np.uint8) for i in range(40)],
        "label": [i % 3 for i in range(40)],
    }
    features = datasets.Features(
        writer=datasets.Value("string"), image=datasets.Image(), label=datasets.ClassLabel(num_classes=3)
    )
    return datasets.Dataset.from_dict(columns, features=features)


def test_columns_are_found_by_their_kind(table):
    federation = Federation.from_hugging_face(table, clients=4, partition="iid")
    assert federation.input_shape == (1, 5, 5)
    assert federation.x.dtype == torch.uint8
    assert (federation.x[11] == 11).all()
    assert federation.y.tolist() == [i % 3 for i in range(40)]


def test_a_column_of_owners(table):
    federation = Federation.from_hugging_face(table, owner="writer")
    assert len(federation) == 4
    assert set((np.concatenate([federation.train[2], federation.test[2]]) % 4).tolist()) == {2}


def test_lists_of_numbers_are_samples_too():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"features": [[i, 1.5] for i in range(20)], "kind": [i % 2 for i in range(20)]})
    federation = Federation.from_hugging_face(data, clients=2, label="kind")
    assert federation.x.dtype == torch.float32
    assert federation.x[3].tolist() == [3.0, 1.5]


def test_partitioners_of_flwr_datasets_deal_as_they_like(table):
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    federation = Federation.from_hugging_face(table, partition=partitioners.LinearPartitioner(num_partitions=4))
    totals = [len(a) + len(b) for a, b in zip(federation.train, federation.test, strict=True)]
    assert totals == [4, 8, 12, 16]
    dealt = Federation.from_hugging_face(
        table, partition=partitioners.PathologicalPartitioner(3, "label", num_classes_per_partition=2)
    )
    assert (dealt.class_counts() > 0).sum(1).max() <= 2


def test_a_partitioner_that_cannot_says_so(table):
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    wrong = partitioners.DirichletPartitioner(num_partitions=4, partition_by="lable", alpha=1.0)
    with pytest.raises(UserError, match="DirichletPartitioner cannot deal these samples out"):
        Federation.from_hugging_face(table, partition=wrong)


def test_hugging_face_data_that_does_not_fit(table):
    with pytest.raises(UserError, match="no column 'lable'; its columns: writer, image, label"):
        Federation.from_hugging_face(table, clients=2, label="lable")
    with pytest.raises(UserError, match="pass one split"):
        Federation.from_hugging_face({"train": table}, clients=2)
    with pytest.raises(UserError, match=r"which column is the label\? Say label=…"):
        Federation.from_hugging_face(table.remove_columns("label"), clients=2)
