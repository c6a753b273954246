"""The format itself: bytes committed once must be read the same for ever (until the version changes)."""

import json
from pathlib import Path

import numpy as np
import pytest

from efl.wire import (
    Context,
    Dense,
    Lattice,
    Layout,
    Message,
    OnSupport,
    Quantised,
    RankOneFisher,
    Signs,
    Ternary,
    decode,
    encode,
)
from efl.wire.merged import unpack_merged
from efl.wire.reader import Reader

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
LAYOUT = Layout(tuple(map(tuple, VECTORS["shapes"])))
OUTLINE = RankOneFisher.unpack(Reader(bytes.fromhex(VECTORS["outline"]["bytes"])), LAYOUT)


def test_the_outline():
    assert OUTLINE.rows.tolist() == VECTORS["outline"]["rows"]
    assert OUTLINE.columns.tolist() == VECTORS["outline"]["columns"]


@pytest.mark.parametrize("vector", VECTORS["payloads"], ids=[vector["name"] for vector in VECTORS["payloads"]])
def test_a_payload(vector):
    context = Context(LAYOUT, OUTLINE if vector.get("by_field") else None)
    blob = bytes.fromhex(vector["bytes"])
    if "merged" in vector:
        for got, expected in zip(unpack_merged(blob, context)[1], vector["merged"], strict=True):
            assert got.positions.tolist() == expected["positions"]
            assert got.values.tolist() == expected["values"]
        return
    got = decode(blob, context)
    if isinstance(got, Dense | Signs | Quantised):
        assert got.values.tolist() == vector["values"]
    elif isinstance(got, Ternary | Lattice | OnSupport):
        assert got.positions.tolist() == vector["positions"]
        assert got.values.tolist() == vector["values"]
    else:
        assert np.allclose(got.fisher, vector["fisher"], rtol=1e-6)
        assert np.allclose(got.displacement, vector["displacement"])
        assert "positions" not in vector or got.index.tolist() == vector["positions"]
    if vector["name"] in (
        "dense",
        "half",
        "signs",
        "quantised",
    ):  # elsewhere zlib's bytes may differ, or the scheme chosen
        assert encode(got, context) == blob


def test_a_message():
    message = Message.from_bytes(bytes.fromhex(VECTORS["message"]["bytes"]), "reply")
    assert message.header == VECTORS["message"]["header"]
    assert isinstance(decode(message.parts["update"], Context(LAYOUT)), Ternary)
