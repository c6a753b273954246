"""Where clients' rows lie."""

import os

import numpy as np
import pytest
import torch

from efl import UserError
from efl.client.state_store import LastUpload, RowsFile, Slot, StateStore


def test_rows_come_back_from_their_slots(tmp_path):
    store = StateStore({"a": 5, "b": 5}, tmp_path / "rows")
    rows = {client: [torch.full((5,), float(client)), torch.arange(5.0) + client] for client in (7, 3)}
    for client, pair in rows.items():
        slot = store.reserve(client)
        assert slot.read is None
        store.accept(client, slot, store.file.write(slot.write, pair), LastUpload(0, {}))
    got = store.file.read([store.current(3), store.current(99), store.current(7)])
    assert torch.equal(got["a"], torch.stack([rows[3][0], torch.zeros(5), rows[7][0]]))
    assert torch.equal(got["b"], torch.stack([rows[3][1], torch.zeros(5), rows[7][1]]))


def test_a_slot_that_a_kept_checkpoint_needs_is_not_written(tmp_path):
    store = StateStore({"a": 4}, tmp_path / "rows")
    rng = np.random.default_rng(0)
    snapshots = []
    for round_ in range(60):
        for client in rng.choice(10, 3, replace=False).tolist():
            slot, row = store.reserve(client), torch.full((4,), float(100 * round_ + client))
            if rng.random() < 0.1:
                store.decline(slot)
            else:
                store.accept(client, slot, store.file.write(slot.write, [row]), LastUpload(round_, {}))
        if round_ % 4 == 0:
            everyone = store.file.read([store.current(client) for client in range(10)])["a"]
            snapshots.append((store.state_dict(), everyone))
            store.checkpointed()
        for state, expected in snapshots[-2:]:
            again = StateStore({"a": 4}, tmp_path / "rows")
            again.load_state_dict(state)
            assert torch.equal(again.file.read([again.current(client) for client in range(10)])["a"], expected)
    assert store.file.slots < 45  # ten clients, two checkpoints and what came since


def test_damaged_rows_are_noticed(tmp_path):
    file = RowsFile({"a": 4}, tmp_path / "rows")
    checksum = file.write(0, [torch.ones(4)])
    (tmp_path / "rows").write_bytes(b"\x00" * 16)
    with pytest.raises(UserError, match="corrupt"):
        file.read([Slot(0, 1, checksum)])


def test_a_state_with_rows_needs_no_file():
    store = StateStore({"a": 3, "b": 2})
    for client, round_ in ((5, 0), (2, 0), (5, 1)):
        slot = store.reserve(client)
        rows = [torch.full((3,), float(client + round_)), torch.full((2,), float(round_))]
        store.accept(client, slot, store.file.write(slot.write, rows), LastUpload(round_, {"update": b"xyz"}))
    again = StateStore({"a": 3, "b": 2})
    again.load_state_dict(store.state_dict(rows=True))
    for kept in (store, again):
        rows = kept.file.read([kept.current(client) for client in (2, 5, 7)])
        assert rows["a"][:, 0].tolist() == [2.0, 6.0, 0.0]
        assert rows["b"][:, 0].tolist() == [0.0, 1.0, 0.0]
        assert (kept.last_upload(5), kept.last_upload(7).round) == (LastUpload(1, {"update": b"xyz"}), -1)


@pytest.mark.parametrize("most", [1, 7, 8, 30])
def test_rows_that_are_transferred_piece_by_piece(monkeypatch, tmp_path, most):
    """A system may read or write less than it is asked for."""

    def reluctant(transfer):
        def some(file, buffers, place):
            left, pieces = most, []
            for buffer in buffers:
                pieces.append(buffer[:left])
                left -= len(pieces[-1])
            return transfer(file, [piece for piece in pieces if piece], place)

        return some

    for name in ("preadv", "pwritev"):
        monkeypatch.setattr(os, name, reluctant(getattr(os, name)))
    file, rows = RowsFile({"a": 3, "b": 1, "c": 4}, tmp_path / "rows"), [torch.rand(3), torch.rand(1), torch.rand(4)]
    checksum = file.write(2, rows)
    assert torch.equal(torch.cat(list(file.read([Slot(2, 0, checksum)]).values()), 1)[0], torch.cat(rows))
