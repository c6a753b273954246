"""Downloads. The hub itself cannot be reached here, so `load_dataset` gives what the hub would."""

import builtins

import numpy as np
import published
import pytest

from efl import UserError, load
from efl.federation import prepare

datasets = pytest.importorskip("datasets")


def splits(**tables):
    return datasets.DatasetDict({name: datasets.Dataset.from_dict(table) for name, table in tables.items()})


def pictures(shape, count, image, label):
    features = datasets.Features({image: datasets.Image(), label: datasets.Value("int64")})
    table = {image: [np.full(shape, i, dtype=np.uint8) for i in range(count)], label: [i % 10 for i in range(count)]}
    return datasets.Dataset.from_dict(table, features=features)


@pytest.fixture
def hub(monkeypatch):
    asked = []

    def give(answer):
        def load_dataset(name, **options):
            asked.append((name, options))
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    return give


def test_images(hub, tmp_path):
    asked = hub(
        datasets.DatasetDict(
            train=pictures((28, 28), 60, "image", "label"), test=pictures((28, 28), 20, "image", "label")
        )
    )
    assert prepare("mnist", data_dir=tmp_path).about == "60 + 20 images"
    assert asked == [("ylecun/mnist", {})]
    federation = load("mnist", clients=4, partition="iid", data_dir=tmp_path)
    assert federation.input_shape == (1, 28, 28)
    assert (federation.x[61] == 1).all()
    hub(datasets.DatasetDict(train=pictures((32, 32, 3), 40, "img", "fine_label")))
    prepare("cifar100", data_dir=tmp_path)
    assert load("cifar100", clients=4, partition="iid", data_dir=tmp_path).input_shape == (3, 32, 32)


def test_cifar10_and_femnist(hub, tmp_path):
    hub(datasets.DatasetDict(train=pictures((32, 32, 3), 40, "img", "label")))
    prepare("cifar10", data_dir=tmp_path)
    assert load("cifar10", clients=4, partition="iid", data_dir=tmp_path).input_shape == (3, 32, 32)
    letters = pictures((28, 28), 30, "image", "character")
    hub(datasets.DatasetDict(train=letters.add_column("writer_id", [f"w{i % 3}" for i in range(30)])))
    assert prepare("femnist", data_dir=tmp_path).about == "3 writers, 30 images"
    federation = load("femnist", clients=3, data_dir=tmp_path)
    assert federation.sizes.tolist() == [9, 9, 9]  # of ten, each of another class: one is tested


def test_roles(hub, tmp_path):
    windows = [
        (f"{play}_{role}", text[i : i + 80], text[i + 80])
        for (play, role), texts in published.speeches().items()
        for text in [" ".join(texts)]
        for i in range(len(text) - 80)
    ]
    columns = dict(zip(("character_id", "x", "y"), map(list, zip(*windows, strict=True)), strict=True))
    hub(splits(train=columns))
    prepare("shakespeare", data_dir=tmp_path)
    assert len(load("shakespeare", clients=3, data_dir=tmp_path)) == 3


def test_tweets(hub, tmp_path):
    rows = [*published.tweets(60), ["2", "1", "Mon", "Q", "u1", "so so"]]
    hub(
        splits(
            train={
                "text": [r[5] for r in rows],
                "user": [r[4] for r in rows],
                "sentiment": [int(r[0]) for r in rows],
            }
        )
    )
    assert prepare("sent140", data_dir=tmp_path).about == "60 tweets of 20 users"


def test_offline_one_line_says_what_to_fetch(hub, tmp_path):
    hub(ConnectionError("Couldn't reach the Hub\nlong story"))
    with pytest.raises(UserError) as error:
        prepare("cifar100", data_dir=tmp_path)
    text = str(error.value)
    assert "could not be downloaded (Couldn't reach the Hub); try again, or fetch cifar-100-binary.tar.gz" in text
    assert text.endswith("then: efl data prepare cifar100 --from DIR")
    for nameless in (TimeoutError(), datasets.exceptions.DatasetGenerationError(), KeyError("image")):
        hub(nameless)
        with pytest.raises(UserError, match="ylecun/mnist could not be downloaded"):
            prepare("mnist", data_dir=tmp_path)
    hub(splits(train={"text": ["so so"], "user": ["u"], "sentiment": [2]}))
    with pytest.raises(UserError, match="hold no samples"):
        prepare("sent140", data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"emnist is not on the hub; fetch gzip\.zip"):
        prepare("emnist", data_dir=tmp_path)


def test_without_the_extra_it_says_how_to_get_it(monkeypatch, tmp_path):
    real = builtins.__import__

    def without_datasets(name, *rest):
        if name == "datasets":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with pytest.raises(UserError, match=r"pip install 'elastic-fl\[hub\]'; or fetch"):
        prepare("mnist", data_dir=tmp_path)
