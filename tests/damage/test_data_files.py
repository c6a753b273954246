"""Damaged data sets, prepared or as their publishers give them out: refused in one line, or what was kept."""

import gzip
import json
import struct
import tarfile
import zipfile

import published
import pytest
import torch
from damages import EVERY, VALUES, damage, outcome
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from efl import UserError, load
from efl.federation.sources import prepare
from efl.federation.sources.registry import SOURCES

# A data set, how its files are made, and which of them is damaged.
FILES = {
    "idx": ("mnist", lambda where: published.mnist(where, zipped=False), "train-images-idx3-ubyte"),
    "labels": ("mnist", lambda where: published.mnist(where, zipped=False), "train-labels-idx1-ubyte"),
    "gzip": ("mnist", published.mnist, "t10k-images-idx3-ubyte.gz"),
    "jsonl": ("shakespeare", published.shakespeare, "plays-by-role.jsonl.gz"),
    "LEAF": ("shakespeare", published.shakespeare_leaf, "train/all_data_niid_train.json"),
    "LEAF images": ("femnist", published.femnist, "train/all_data_0_niid_1_keep_0_train_9.json"),
    "csv": ("sent140", published.sent140, "sample.csv.gz"),
    "records": ("cifar10", published.cifar10_binary, "data_batch_1.bin"),
    "pickle": ("cifar10", published.cifar10_python, "data_batch_1"),
}


@pytest.mark.parametrize("how", EVERY)
@pytest.mark.parametrize("kind", FILES)
def test_published_files(tmp_path, kind, how):
    dataset, make, name = FILES[kind]
    make(tmp_path)
    damage(tmp_path / name, how)
    outcome(lambda: SOURCES.get(dataset).read(tmp_path))


@pytest.mark.parametrize("how", EVERY)
@pytest.mark.parametrize("kind", ["files.zip", "files.tar", "files.tgz"])
def test_archives(tmp_path, kind, how):
    published.mnist(tmp_path / "plain", train=20, test=10)
    (tmp_path / "packed").mkdir()
    path, parts = tmp_path / "packed" / kind, sorted((tmp_path / "plain").iterdir())
    if kind.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for part in parts:
                archive.write(part, part.name)
    else:
        with tarfile.open(path, "w:gz" if kind.endswith("tgz") else "w") as archive:
            for part in parts:
                archive.add(part, part.name)
    assert outcome(lambda: SOURCES.get("mnist").read(path.parent)) is not None
    damage(path, how)
    outcome(lambda: SOURCES.get("mnist").read(path.parent))


@pytest.mark.parametrize("sizes", [(2**32 - 1,) * 3, (2**32 - 1, 2**32 - 1, 0), (2**31, 2**31, 4), (0, 28, 28)])
def test_idx_sizes_that_no_computer_can_multiply(tmp_path, sizes):
    published.mnist(tmp_path, zipped=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", *sizes) + path.read_bytes()[16:])
    assert outcome(lambda: SOURCES.get("mnist").read(tmp_path)) is None


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("efl.federation.published_files.LARGEST", 2**24)
    published.mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(2**25), 1))
    with pytest.raises(UserError, match="unpacked, more than"):
        SOURCES.get("mnist").read(tmp_path)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", ["user_data", "x", "y"])
def test_values_in_leaf_files(tmp_path, key, value):
    published.femnist(tmp_path)
    path = tmp_path / "train" / "all_data_0_niid_1_keep_0_train_9.json"
    content = json.loads(path.read_text())
    table = content if key == "user_data" else content["user_data"]["f3608_13"]
    table[key] = "HERE"
    path.write_text(json.dumps(content).replace('"HERE"', VALUES[value]))
    assert outcome(lambda: SOURCES.get("femnist").read(tmp_path)) is None


@pytest.mark.parametrize("value", VALUES)
def test_values_in_lines_of_plays(tmp_path, value):
    lines = ['{"play": "a", "role": "b", "speeches": ["words"]}', '{"play": "a", "role": "b", "speeches": HERE}']
    (tmp_path / "plays.jsonl").write_text("\n".join(lines).replace("HERE", VALUES[value]))
    assert outcome(lambda: SOURCES.get("shakespeare").read(tmp_path)) is None


@pytest.fixture
def prepared(tmp_path):
    published.mnist(tmp_path / "files")
    prepare("mnist", tmp_path / "files", tmp_path)
    return tmp_path / "mnist.safetensors"


def fingerprint(path):
    return load("mnist", clients=5, partition="iid", data_dir=path.parent).fingerprint


@pytest.mark.parametrize("how", EVERY)
def test_prepared(prepared, how):
    expected = fingerprint(prepared)
    damage(prepared, how)
    assert outcome(lambda: fingerprint(prepared)) in (None, expected)


CHANGES = {
    "shape": lambda texts, tensors: tensors.update(images=tensors["images"].view(-1, 14, 56)),
    "dtype": lambda texts, tensors: tensors.update(labels=tensors["labels"].view(dtype=torch.int8)),
    "order": lambda texts, tensors: tensors.update(labels=tensors["labels"].flip(0)),
    "about": lambda texts, tensors: texts.update(about="mine"),
    "tensor": lambda texts, tensors: tensors.pop("labels"),
    "another": lambda texts, tensors: tensors.update(more=tensors["labels"].clone()),
    "format": lambda texts, tensors: texts.update(format="1"),
    "checksum": lambda texts, tensors: texts.update({"crc.labels": "1"}),
    "notes": lambda texts, tensors: texts.clear(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_no_part_of_a_prepared_file_can_be_edited(prepared, what):
    with safe_open(prepared, framework="pt") as file:
        texts = file.metadata()
    tensors = load_file(prepared)
    CHANGES[what](texts, tensors)
    save_file(tensors, prepared, texts)
    with pytest.raises(UserError, match=r"damaged|another version"):
        fingerprint(prepared)


def test_a_file_under_another_name_is_refused(prepared):
    prepared.rename(prepared.with_name("emnist.safetensors"))
    with pytest.raises(UserError, match="holds mnist"):
        load("emnist", clients=5, partition="iid", data_dir=prepared.parent)


def test_a_file_prepared_by_the_version_before_is_read(prepared):
    expected = fingerprint(prepared)
    with safe_open(prepared, framework="pt") as file:
        texts = {key: text for key, text in file.metadata().items() if key not in ("sha256", "dataset")}
    save_file(load_file(prepared), prepared, texts | {"format": "1"})
    assert fingerprint(prepared) == expected
