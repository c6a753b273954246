import gzip
import shutil
import tarfile
import zipfile

import numpy as np
import published
import pytest
import torch

from efl import UserError, load
from efl.federation import prepare
from efl.federation.prepared import location, read_prepared
from efl.federation.sources import sent140, shakespeare

WRITERS = {
    "mnist": published.mnist,
    "emnist": published.emnist,
    "cifar10": published.cifar10_binary,
    "cifar100": published.cifar100_binary,
    "femnist": published.femnist,
    "shakespeare": published.shakespeare,
    "sent140": published.sent140,
}


@pytest.mark.parametrize("name", WRITERS)
def test_prepared_once_it_loads_without_the_files(name, tmp_path):
    WRITERS[name](tmp_path / "files")
    prepare(name, tmp_path / "files", tmp_path / "data")
    shutil.rmtree(tmp_path / "files")
    first = load(name, clients=3, partition="iid", data_dir=tmp_path / "data", seed=5)
    again = load(name, clients=3, partition="iid", data_dir=tmp_path / "data", seed=5)
    assert len(first) == 3
    assert all(np.array_equal(a, b) for a, b in zip(first.train + first.test, again.train + again.test, strict=True))
    x, y = first.batch(torch.arange(4))
    assert x.shape[0] == y.shape[0] == 4


def test_files_in_the_data_directory_are_prepared_when_first_asked_for(tmp_path, monkeypatch):
    published.mnist(tmp_path / "somewhere" / "below")
    monkeypatch.setenv("EFL_DATA", str(tmp_path))
    assert len(load("mnist", clients=5, partition="iid").x) == 100
    assert location(tmp_path, "mnist").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_keeps_bytes_and_converts_batches(tmp_path, zipped):
    images, labels = published.mnist(tmp_path, zipped=zipped)
    federation = load("mnist", clients=5, partition="classes:4", data_dir=tmp_path)
    assert federation.x.dtype == torch.uint8
    assert np.array_equal(federation.x[:, 0].numpy(), images)
    assert np.array_equal(federation.y.numpy(), labels)
    x, _ = federation.batch(torch.tensor([3, 7]))
    expected = (torch.from_numpy(images[[3, 7]]).float() / 255 - 0.1307) / 0.3081
    assert torch.allclose(x[:, 0], expected, atol=1e-5)


def test_emnist_is_turned_upright(tmp_path):
    images, _ = published.emnist(tmp_path)
    federation = load("emnist", clients=4, partition="iid", data_dir=tmp_path)
    assert federation.classes == 62
    assert np.array_equal(federation.x[17, 0].numpy(), images[17].T)


@pytest.mark.parametrize("write", [published.cifar100_binary, published.cifar100_python])
def test_cifar100_from_either_form(tmp_path, write):
    images, labels = write(tmp_path)
    federation = load("cifar100", clients=4, partition="iid", data_dir=tmp_path)
    assert federation.classes == 100
    assert np.array_equal(federation.x.numpy(), images)
    assert np.array_equal(federation.y.numpy(), labels)
    x, _ = federation.batch(torch.arange(2))
    red = (torch.from_numpy(images[:2, 0]).float() / 255 - 0.5071) / 0.2673
    assert torch.allclose(x[:, 0], red, atol=1e-5)


@pytest.mark.parametrize("write", [published.cifar10_binary, published.cifar10_python])
def test_cifar10_from_either_form(tmp_path, write):
    images, labels = write(tmp_path)
    assert prepare("cifar10", tmp_path, tmp_path / "data").about == "10 + 10 + 10 + 10 + 10 + 10 images"
    federation = load("cifar10", clients=4, partition="iid", data_dir=tmp_path / "data")
    assert federation.classes == 10
    assert np.array_equal(federation.x.numpy(), images)
    assert np.array_equal(federation.y.numpy(), labels)
    x, _ = federation.batch(torch.arange(2))
    blue = (torch.from_numpy(images[:2, 2]).float() / 255 - 0.4465) / 0.2616
    assert torch.allclose(x[:, 2], blue, atol=1e-5)


def test_a_femnist_client_is_a_writer(tmp_path):
    images = published.femnist(tmp_path)
    assert prepare("femnist", tmp_path, tmp_path / "data").about == "4 writers, 41 images"
    federation = load("femnist", clients=3, data_dir=tmp_path / "data")  # f1111_11 has a single image
    assert federation.classes == 62
    assert federation.input_shape == (1, 28, 28)
    mine = [torch.from_numpy(np.concatenate(pair)) for pair in zip(federation.train, federation.test, strict=True)]
    found = [set(map(bytes, federation.x[client].numpy().reshape(len(client), -1))) for client in mine]
    expected = [set(map(bytes, pixels.astype(np.uint8))) for pixels in images.values() if len(pixels) > 1]
    assert all(any(client == writer for writer in expected) for client in found)
    assert len(found) == len(expected) == 3
    with pytest.raises(UserError, match="femnist has 3 writers with two images or more; ask for at most so many"):
        load("femnist", clients=4, data_dir=tmp_path / "data")


def test_femnist_that_is_damaged_is_refused(tmp_path):
    published.femnist(tmp_path)
    file = next((tmp_path / "train").iterdir())
    good = file.read_text()
    for wrong in ('{"user_data": {"w": {"x": [[2.0]], "y": [0]}}}', good[: len(good) // 2], '{"users": []}'):
        file.write_text(wrong)
        with pytest.raises(UserError, match="expected LEAF's"):
            prepare("femnist", tmp_path, tmp_path / "data")
    file.write_text('{"user_data": {"w": {"x": [' + str([0.5] * 784) + '], "y": [62]}}}')
    with pytest.raises(UserError, match="writer w should have labels 0 … 61"):
        prepare("femnist", tmp_path, tmp_path / "data")


def test_archives_are_read_as_they_were_downloaded(tmp_path):
    published.emnist(tmp_path / "gzip")
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        for path in (tmp_path / "gzip").iterdir():
            archive.write(path, f"gzip/{path.name}")
    shutil.rmtree(tmp_path / "gzip")
    assert "124 + 124 images" in prepare("emnist", tmp_path, tmp_path / "data").about
    published.cifar100_binary(tmp_path / "cifar-100-binary")
    with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-100-binary", "cifar-100-binary")
    shutil.rmtree(tmp_path / "cifar-100-binary")
    assert "300 + 100 images" in prepare("cifar100", tmp_path, tmp_path / "data").about


def test_a_shakespeare_client_is_a_role_and_a_sample_80_characters(tmp_path):
    published.shakespeare(tmp_path)
    federation = load("shakespeare", clients=3, data_dir=tmp_path)  # MUTE has no whole window
    assert federation.input_shape == (80,)
    for client, texts in enumerate(list(published.speeches().values())[:3]):
        text = "\n".join(texts)
        samples = np.sort(np.concatenate([federation.train[client], federation.test[client]]))
        assert len(samples) == (len(text) - 1) // 80
        x, y = federation.batch(torch.from_numpy(samples))
        assert np.array_equal(x.reshape(-1).numpy(), shakespeare.encode(text)[: x.numel()])
        assert np.array_equal(y.reshape(-1).numpy(), shakespeare.encode(text)[1 : y.numel() + 1])


def test_leafs_overlapping_windows_are_put_together_again(tmp_path):
    published.shakespeare_leaf(tmp_path)
    prepared = prepare("shakespeare", tmp_path, tmp_path / "data")
    assert "3 roles" in prepared.about
    characters, starts = prepared.tensors["characters"].numpy(), prepared.tensors["starts"].numpy()
    text = " ".join(published.speeches()["hamlet", "HAMLET"])
    cut = (len(text) - 80) * 4 // 5
    pieces = [text[cut + 80 :], text[: cut + 80]]  # the folder test comes before the folder train
    assert np.array_equal(characters[starts[0] : starts[1]], shakespeare.encode("\n".join(pieces)))


def test_as_many_roles_as_clients_and_no_more_than_there_are(tmp_path):
    published.shakespeare(tmp_path)
    first, second = (load("shakespeare", clients=2, data_dir=tmp_path, seed=seed) for seed in (0, 0))
    assert torch.equal(first.x, second.x)
    with pytest.raises(UserError, match="3 roles with two windows"):
        load("shakespeare", clients=4, data_dir=tmp_path)
    with pytest.raises(UserError, match="needs one label per sample"):
        load("shakespeare", clients=2, partition="classes:2", data_dir=tmp_path)


def test_sent140_groups_users_and_knows_training_words_only(tmp_path):
    rows = published.tweets()
    published.sent140(tmp_path, rows)
    federation = load("sent140", clients=5, data_dir=tmp_path)
    users = np.array([row[4] for row in rows])
    groups = [set(users[np.concatenate(pair)]) for pair in zip(federation.train, federation.test, strict=True)]
    assert sum(map(len, groups)) == len(set(users))  # nobody is in two groups
    training = [row for client in federation.train for row in (rows[i] for i in client)]
    counts: dict[str, int] = {}
    for row in training:
        for word in sent140.tokenize(row[5]):
            counts[word] = counts.get(word, 0) + 1
    known = {word for word, count in counts.items() if count >= 2}
    number = {}
    for sample in range(len(rows)):
        for word, code in zip(sent140.tokenize(rows[sample][5]), federation.x[sample].tolist(), strict=False):
            assert (code >= 2) == (word in known)
            if code >= 2:
                assert number.setdefault(code, word) == word  # one number, one word
    assert federation.vocabulary is not None
    assert int(federation.x.max()) < federation.vocabulary


def test_neutral_tweets_are_left_out(tmp_path):
    published.sent140(tmp_path, [*published.tweets(40), ["2", "1", "Mon", "Q", "u1", "so so"]])
    assert prepare("sent140", tmp_path, tmp_path / "data").about == "40 tweets of 14 users"


def test_what_is_there_twice_counts_once(tmp_path):
    published.sent140(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "plain.csv").write_bytes(gzip.decompress((tmp_path / "a" / "sample.csv.gz").read_bytes()))
    (tmp_path / "b" / "other.csv").write_text("name,age\nbo,3\n")
    (tmp_path / "b" / "._sample.csv").write_bytes(b"what a Mac leaves behind")
    (tmp_path / "b" / "half.zip").write_bytes(b"PK half a download")
    assert prepare("sent140", tmp_path, tmp_path / "data").about == "300 tweets of 100 users"


def test_of_leafs_stages_only_the_last_is_read(tmp_path):
    published.shakespeare_leaf(tmp_path)
    once = prepare("shakespeare", tmp_path, tmp_path / "data").about
    for stage in ("all_data", "sampled_data"):
        (tmp_path / stage).mkdir()
        content = (tmp_path / "train" / "all_data_niid_train.json").read_text()
        (tmp_path / stage / "all_data.json").write_text(content + " " * len(stage))
    assert prepare("shakespeare", tmp_path, tmp_path / "data").about == once


def test_the_split_does_not_depend_on_how_files_are_packed(tmp_path):
    rows = published.tweets()
    for name, part in (("b-first", rows[:150]), ("a-second", rows[150:])):
        published.sent140(tmp_path / "plain", part)
        (tmp_path / "plain" / "sample.csv.gz").rename(tmp_path / "plain" / f"{name}.csv.gz")
    (tmp_path / "zip").mkdir()
    with zipfile.ZipFile(tmp_path / "zip" / "all.zip", "w") as archive:
        for name in ("b-first", "a-second"):
            archive.write(tmp_path / "plain" / f"{name}.csv.gz", f"{name}.csv.gz")
    plain, zipped = (prepare("sent140", tmp_path / kind, tmp_path / "data").tensors for kind in ("plain", "zip"))
    assert torch.equal(plain["words"], zipped["words"])


def test_a_wrong_mnist_beside_the_right_one_is_passed_over(tmp_path):
    """torchvision's folder has FashionMNIST/raw and MNIST/raw, with files of the same names and sizes."""
    published.mnist(tmp_path / "MNIST")
    published.mnist(tmp_path / "FashionMNIST")
    published.write_idx_pair(tmp_path / "FashionMNIST", "t10k", np.zeros((10_000, 28, 28)), np.arange(10_000) % 10)
    assert prepare("mnist", tmp_path, tmp_path / "data").about == "80 + 20 images"


def test_files_in_a_directory_that_may_not_be_written_are_used_all_the_same(tmp_path, monkeypatch):
    published.mnist(tmp_path)
    monkeypatch.setattr("efl.federation.prepared.save_file", lambda *_: (_ for _ in ()).throw(PermissionError("no")))
    assert len(load("mnist", clients=4, partition="iid", data_dir=tmp_path).x) == 100


# What goes wrong


def test_a_missing_data_set_says_in_one_line_what_to_fetch_and_where_to_put_it(tmp_path):
    for name in WRITERS:
        with pytest.raises(UserError) as error:
            load(name, data_dir=tmp_path)
        text = str(error.value)
        assert f"{name} is not in {tmp_path}; fetch" in text
        assert f"efl data prepare {name} --from DIR" in text
        assert "\n" not in text


def truncate(path, share=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def test_damaged_truncated_and_wrong_files_are_named_with_what_was_expected(tmp_path):
    def refused(name, *words):
        with pytest.raises(UserError) as error:
            prepare(name, tmp_path, tmp_path / "data")
        assert all(word in str(error.value) for word in words), error.value
        assert "\n" not in str(error.value)
        assert not (tmp_path / "data").exists()
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()

    published.mnist(tmp_path)
    truncate(tmp_path / "train-images-idx3-ubyte.gz")
    refused("mnist", "train-images-idx3-ubyte.gz", "damaged")
    published.mnist(tmp_path, zipped=False)
    truncate(tmp_path / "t10k-images-idx3-ubyte")
    refused("mnist", "t10k-images-idx3-ubyte should have 15,696 bytes for 20 × 28 × 28 values, but has 7,848")
    published.mnist(tmp_path, zipped=False)
    shutil.copy(tmp_path / "train-labels-idx1-ubyte", tmp_path / "train-images-idx3-ubyte")
    refused("mnist", "train-images-idx3-ubyte", "wrong magic number")
    published.mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    refused("mnist", "has no t10k-labels-idx1-ubyte")
    published.cifar100_binary(tmp_path)
    truncate(tmp_path / "test.bin", 0.505)
    refused("cifar100", "test.bin should be whole records of 3,074 bytes", "but has 155,237 bytes")
    published.shakespeare(tmp_path)
    (tmp_path / "plays-by-role.jsonl.gz").write_bytes(gzip.compress(b'{"play": "x"}\n'))
    refused("shakespeare", "plays-by-role.jsonl.gz, line 1", '"role"')
    published.sent140(tmp_path, [["9", "1", "Mon", "Q", "u", "text"]])
    refused("sent140", "sample.csv.gz, row 1", "target (0, 2 or 4)")
    published.sent140(tmp_path, [["0", "1", "Mon", "Q", "u", "x" * 200_000]])
    refused("sent140", "sample.csv.gz is no table of Sentiment140")
    (tmp_path / "x.json").write_text('{"user_data": {"bo": {"x": ["abc", "bcd"], "y": ["d"]}}}')
    refused("shakespeare", "x.json", "expected LEAF's")
    (tmp_path / "x.jsonl").write_text('{"play": "p", "role": "r", "speeches": "hello"}')
    refused("shakespeare", "x.jsonl, line 1", "speeches must be a list")
    published.mnist(tmp_path, train=0, test=0)
    refused("mnist", "the files of mnist hold no samples (0 + 0 images)")
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(b"no archive")
    refused("cifar100", "cifar-100-binary.tar.gz is damaged or cannot be read")


def test_a_file_with_the_published_size_but_other_content_is_refused(tmp_path):
    """Fashion-MNIST has the same names and sizes."""
    images, labels = np.zeros((10_000, 28, 28)), np.arange(10_000) % 10
    published.mnist(tmp_path)
    published.write_idx_pair(tmp_path, "t10k", images, labels)
    with pytest.raises(UserError, match=r"is not the published t10k-images-idx3-ubyte: its SHA256 sum is"):
        prepare("mnist", tmp_path, tmp_path / "data")


class Evil:
    def __reduce__(self):
        return print, ("owned",)


def test_a_pickle_runs_no_code(tmp_path, capsys):
    import pickle

    published.cifar100_python(tmp_path)
    (tmp_path / "train").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(UserError, match=r"asks for builtins\.print"):
        prepare("cifar100", tmp_path, tmp_path / "data")
    assert "owned" not in capsys.readouterr().out


@pytest.mark.parametrize("harm", ["truncated", "flipped", "emptied"])
def test_a_damaged_cache_is_never_used(tmp_path, harm):
    published.mnist(tmp_path)
    prepare("mnist", tmp_path, tmp_path / "data")
    path = location(tmp_path / "data", "mnist")
    data = bytearray(path.read_bytes())
    if harm == "truncated":
        del data[-100:]
    elif harm == "flipped":
        data[-500] ^= 1
    else:
        data.clear()
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"mnist\.safetensors is damaged .*efl data prepare mnist --from DIR"):
        load("mnist", data_dir=tmp_path / "data")


def test_a_cache_that_could_not_be_finished_leaves_no_trace(tmp_path, monkeypatch):
    published.mnist(tmp_path)

    def half_written(tensors, path, notes):
        path.write_bytes(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr("efl.federation.prepared.save_file", half_written)
    with pytest.raises(UserError, match="disk full"):
        prepare("mnist", tmp_path, tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_cache_of_another_version_is_refused(tmp_path, monkeypatch):
    published.mnist(tmp_path)
    monkeypatch.setattr("efl.federation.prepared.FORMAT", "0")
    prepare("mnist", tmp_path, tmp_path / "data")
    monkeypatch.undo()
    with pytest.raises(UserError, match="another version"):
        read_prepared(location(tmp_path / "data", "mnist"))


def test_names_with_an_argument_only_where_there_is_one():
    with pytest.raises(UserError, match="did you mean 'mnist'"):
        load("mnist:2")
    with pytest.raises(UserError, match="needs no preparing"):
        prepare("digits", "/tmp")
