"""Tiny data sets in the very formats of their publishers, and where the real ones are, if they are."""

import csv
import gzip
import io
import json
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "unpack"


def unpack_real(destination: Path, *names: str) -> Path:
    """The real data sets, written out by the script that comes with them."""
    subprocess.run([sys.executable, SHARED, destination, *names], check=True)
    return destination


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx_pair(directory: Path, stem: str, images: np.ndarray, labels: np.ndarray, *, zipped: bool = True) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        path, data = directory / f"{stem}-{kind}-ubyte", idx(array)
        if zipped:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
        else:
            path.write_bytes(data)


def mnist(directory: Path, *, train: int = 80, test: int = 20, zipped: bool = True) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (train + test, 28, 28)), np.arange(train + test) % 10
    write_idx_pair(directory, "train", images[:train], labels[:train], zipped=zipped)
    write_idx_pair(directory, "t10k", images[train:], labels[train:], zipped=zipped)
    return images, labels


def emnist(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (248, 28, 28)), np.arange(248) % 62
    write_idx_pair(directory, "emnist-byclass-train", images[:124], labels[:124])
    write_idx_pair(directory, "emnist-byclass-test", images[124:], labels[124:])
    return images, labels


def cifar100() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.integers(0, 256, (400, 3, 32, 32)).astype(np.uint8), np.arange(400) % 100


def cifar100_binary(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels = cifar100()
    records = np.concatenate([labels[:, None] // 5, labels[:, None], images.reshape(400, -1)], 1).astype(np.uint8)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.bin").write_bytes(records[:300].tobytes())
    (directory / "test.bin").write_bytes(records[300:].tobytes())
    return images, labels


def cifar100_python(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels = cifar100()
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", slice(0, 300)), ("test", slice(300, 400))):
        table = {b"data": images[part].reshape(-1, 3072), b"fine_labels": labels[part].tolist(), b"batch_label": b"1"}
        (directory / name).write_bytes(pickle.dumps(table, protocol=2))
    return images, labels


def cifar10(directory: Path, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Six files of ten images each, the first five to train on."""
    rng = np.random.default_rng(5)
    images, labels = rng.integers(0, 256, (60, 3, 32, 32)).astype(np.uint8), np.arange(60) % 10
    directory.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        part = slice(10 * number, 10 * number + 10)
        x, y = images[part].reshape(10, -1), labels[part]
        if form == "binary":
            (directory / f"{name}.bin").write_bytes(np.concatenate([y[:, None], x], 1).astype(np.uint8).tobytes())
        else:
            table = {b"batch_label": b"batch", b"labels": y.tolist(), b"data": x, b"filenames": [b"a.png"] * 10}
            (directory / name).write_bytes(pickle.dumps(table, protocol=2))
    return images, labels


def cifar10_binary(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    return cifar10(directory, "binary")


def cifar10_python(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    return cifar10(directory, "python")


WRITERS = {"f3795_00": 12, "f3608_13": 8, "f0034_33": 20, "f1111_11": 1}


def femnist(directory: Path) -> dict[str, np.ndarray]:
    """LEAF's JSON after preprocess.sh: images of writers, four fifths of each in the folder train."""
    rng = np.random.default_rng(6)
    images = {writer: rng.integers(0, 256, (count, 784)) for writer, count in WRITERS.items()}
    for part in ("train", "test"):
        users = {}
        for writer, pixels in images.items():
            cut = -(-len(pixels) * 4 // 5)
            chosen = slice(cut) if part == "train" else slice(cut, None)
            labels = (np.arange(len(pixels)) % 62)[chosen].tolist()
            users[writer] = {"x": (pixels[chosen] / 255).tolist(), "y": labels}
        sizes = [len(user["y"]) for user in users.values()]
        content = {"users": list(users), "num_samples": sizes, "user_data": users}
        (directory / part).mkdir(parents=True, exist_ok=True)
        (directory / part / f"all_data_0_niid_1_keep_0_{part}_9.json").write_text(json.dumps(content))
    return images


def speeches() -> dict[tuple[str, str], list[str]]:
    words = ["to", "be", "or", "not", "that", "is", "the", "question", "nobler", "mind", "slings", "arrows"]
    rng = np.random.default_rng(3)
    return {
        (play, role): [" ".join(rng.choice(words, 40)) + "." for _ in range(length)]
        for play, role, length in (("hamlet", "HAMLET", 9), ("hamlet", "GHOST", 4), ("lear", "FOOL", 6))
    } | {("lear", "MUTE"): ["No."]}


def shakespeare(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"play": p, "role": r, "speeches": texts}) for (p, r), texts in speeches().items()]
    (directory / "plays-by-role.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


def shakespeare_leaf(directory: Path) -> None:
    """LEAF's windows overlap in all but one character; the first four fifths are for training."""
    for part in ("train", "test"):
        users = {}
        for (play, role), texts in speeches().items():
            text = " ".join(texts)
            windows = [(text[i : i + 80], text[i + 80]) for i in range(len(text) - 80)]
            cut = len(windows) * 4 // 5
            chosen = windows[:cut] if part == "train" else windows[cut + 80 :]
            if chosen:
                users[f"{play.upper()}_{role}"] = {"x": [x for x, _ in chosen], "y": [y for _, y in chosen]}
        content = {"users": list(users), "num_samples": [len(d["x"]) for d in users.values()], "user_data": users}
        (directory / part).mkdir(parents=True, exist_ok=True)
        (directory / part / f"all_data_niid_{part}.json").write_text(json.dumps(content))


def tweets(count: int = 300) -> list[list[str]]:
    rng = np.random.default_rng(4)
    rows = []
    for number in range(count):
        glad = number % 2
        mood = rng.choice(["love", "great", "happy"] if glad else ["hate", "sad", "awful"])
        text = f"@user{number} I {mood} this, it's {number} o'clock! http://t.co/{number}"
        rows.append(["4" if glad else "0", str(number), "Mon", "NO_QUERY", f"u{number // 3}", text])
    return rows


def sent140(directory: Path, rows: list[list[str]] | None = None) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(tweets() if rows is None else rows)
    (directory / "sample.csv.gz").write_bytes(gzip.compress(text.getvalue().encode("latin-1")))
