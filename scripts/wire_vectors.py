"""Make tests/wire/vectors.json anew: messages in bytes, and what is in them, for decoders in other languages.

    python scripts/wire_vectors.py

To be run only when the format changes, which is when the version of a message changes.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from efl.wire import (
    Context,
    Dense,
    Field,
    Lattice,
    Layout,
    OnSupport,
    Quantised,
    RankOneFisher,
    Signs,
    Ternary,
    TrainReply,
    context,
    encode,
)
from efl.wire.merged import pack_merged

SHAPES = ((8, 1, 3, 3), (8,), (30, 72), (30,))
TARGET = Path(__file__).parents[1] / "tests" / "wire" / "vectors.json"


def described(name: str, blob: bytes, **content: Any) -> dict[str, Any]:
    """A vector: its bytes, and its content as lists."""
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in content.items()}
    return {"name": name, "bytes": blob.hex(), **plain}


def main() -> None:
    """Every kind of payload, with and without a field to code by."""
    context.WORTH_SORTING = 0  # so that short examples show all ways
    layout = Layout(SHAPES)
    octaves = [np.add.outer(np.arange(b.rows) * 3 % 7, np.arange(b.columns) * 5 % 6).reshape(-1) for b in layout.blocks]
    fisher = np.exp2(np.concatenate(octaves)).astype(np.float32)
    outline = RankOneFisher.of(fisher, layout)
    plain, by_field = Context(layout), Context(layout, outline)
    every = np.arange(layout.n)
    few, many = every[every % 41 == 3], np.sort(np.argsort(-outline.dense(), kind="stable")[:900])
    update = Ternary(layout, few, few % 2 == 0, np.array([0.25], np.float32))
    each = Ternary(layout, many, many % 3 == 0, np.array([0.5, 0.25, 2.0, 1.0], np.float32))
    agreeing = Ternary(layout, many, (many // 72 % 2 == 0) ^ (many % 19 == 0), np.array([0.25], np.float32))
    moved = np.where(few % 2 == 0, 0.5, -0.125).astype(np.float32)
    short = Field(layout, few, fisher[few], moved, outline)
    values = (np.arange(layout.n) % 64 / 8 - 4).astype(np.float32)
    signs, rounded = Signs(every % 3 == 0, 0.25), Quantised(layout, (every % 255 - 127).astype(np.int8), each.scales)
    lattice = Lattice(layout, many, np.where(many % 2 == 0, 1 + many % 5, -(many**2) % 70 - 1).astype(np.int32), 0.125)
    chosen = OnSupport(layout.n, 5, values[:40])
    on_lattice = {"positions": many, "values": lattice.values}
    sparse = {"positions": few, "values": update.values}
    dense = {"positions": many, "values": each.values}
    vectors = [
        described("dense", encode(Dense(values), plain), values=values),
        described("half", encode(Dense(values, half=True), plain), values=values),
        described("ternary", encode(update, plain), **sparse),
        described("ternary, a scale for each tensor", encode(each, plain), **dense),
        described("ternary, coded by the field", encode(each, by_field), by_field=True, **dense),
        described("ternary, signs by row", encode(agreeing, plain), positions=many, values=agreeing.values),
        described("full field", encode(Field(layout, None, fisher, values), plain), fisher=fisher, displacement=values),
        described("short field", encode(short, plain), positions=few, fisher=fisher[few], displacement=moved),
        described("merged", pack_merged([update, each], by_field), by_field=True, merged=[
            {key: value.tolist() for key, value in one.items()} for one in (sparse, dense)
        ]),
        described("signs", encode(signs, plain), values=signs.values),
        described("quantised", encode(rounded, plain), values=rounded.values),
        described("on a support", encode(chosen, plain), positions=chosen.positions, values=chosen.values),
        described("lattice", encode(lattice, plain), **on_lattice),
        described("lattice, coded by the field", encode(lattice, by_field), by_field=True, **on_lattice),
    ]  # fmt: skip
    reply = TrainReply(3, 7, 5, 0.5, {"update": encode(update, plain)})
    content = {
        "shapes": [list(shape) for shape in SHAPES],
        "outline": {"rows": outline.rows.tolist(), "columns": outline.columns.tolist(), "bytes": outline.pack().hex()},
        "payloads": vectors,
        "message": {"bytes": reply.to_bytes().hex(), "header": [*reply.envelope().header]},
    }
    TARGET.write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
