"""What clients keep between rounds: named rows, most as long as the model, and what they sent last.

The rows lie in a file, one slot for a client's rows; only the slots of a round's cohort are touched, and a client that
never took part has none. A client's new rows always go to a free slot, and a slot is free only when no checkpoint that
is kept needs it. So a checkpoint holds no rows, only who sits where, and a run that is killed finds the rows as they
were. Several processes share the file: whoever does a client's work is told where to read and where to write.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgpack
import numpy as np
import torch
from torch import Tensor

from efl.errors import UserError

NO_ROUND = -1
NO_SLOT = -1
CHECKPOINTS_KEPT = 2
PAGE = 4096
NOWHERE = -1


@dataclass(frozen=True)
class LastUpload:
    """The round of a client's last upload, and the encoded parts it keeps until they are known to have arrived."""

    round: int
    parts: Mapping[str, bytes]


@dataclass(frozen=True)
class Seat:
    """Where a client's rows are read (None: nowhere yet, they are zero) and where the new ones go, with a checksum."""

    read: int | None
    write: int
    checksum: int | None = None


NO_UPLOAD = LastUpload(NO_ROUND, {})


class RowsFile:
    """Rows in a file, by slot; any number of processes may have it open."""

    def __init__(self, lengths: Mapping[str, int], path: Path | None = None) -> None:
        self.lengths = dict(lengths)
        self.bytes = 4 * sum(self.lengths.values())
        self.slot_bytes = -(-self.bytes // PAGE) * PAGE
        self._file = NOWHERE
        if self.lengths:
            self._file = _opened(path)
            weakref.finalize(self, os.close, self._file)

    def read(self, seats: Sequence[Seat]) -> dict[str, Tensor]:
        """The rows at these seats, as one matrix a name."""
        matrices = {name: torch.zeros(len(seats), length) for name, length in self.lengths.items()}
        for row, seat in enumerate(seats):
            if seat.read is not None:
                self._read(seat, [matrix[row] for matrix in matrices.values()])
        return matrices

    def _read(self, seat: Seat, rows: list[Tensor]) -> None:
        assert seat.read is not None
        got = os.preadv(self._file, [_bytes(row) for row in rows], seat.read * self.slot_bytes)
        if got != self.bytes or (seat.checksum is not None and _checksum(rows) != seat.checksum):
            raise UserError("what clients keep is damaged (checkpoint/clients.rows); start the run anew")

    def write(self, slot: int, rows: Sequence[Tensor]) -> int:
        """Put rows into a slot; their checksum."""
        os.pwritev(self._file, [_bytes(row) for row in rows], slot * self.slot_bytes)
        return _checksum(rows)

    @property
    def slots(self) -> int:
        """How many slots the file has room for."""
        return 0 if self._file == NOWHERE else -(-os.fstat(self._file).st_size // self.slot_bytes)

    def sync(self) -> None:
        """See to it that what was written survives a power cut."""
        if self._file != NOWHERE:
            os.fsync(self._file)


def _opened(path: Path | None) -> int:
    """A file to read and write, by its number; without a path, one that nobody else can see."""
    if path is not None:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    file, name = tempfile.mkstemp(prefix="efl-")
    os.unlink(name)
    return file


def _bytes(row: Tensor) -> memoryview:
    """A row's memory."""
    return row.numpy().view(np.uint8).data


def _checksum(rows: Sequence[Tensor]) -> int:
    """Catches files that were swapped or cut, in a fraction of the time that a CRC takes."""
    return sum(int(np.add.reduce(row.numpy().view(np.uint32), dtype=np.uint32)) for row in rows)


class StateStore:
    """Who sits where, and what everybody sent last."""

    def __init__(self, lengths: Mapping[str, int], path: Path | None = None) -> None:
        self.file = RowsFile(lengths, path)
        self.uploads: dict[int, LastUpload] = {}
        self._seats: dict[int, tuple[int, int]] = {}  # client → slot, checksum
        self._free: list[int] = []
        self._slots = 0  # handed out so far
        self._kept: deque[frozenset[int]] = deque(maxlen=CHECKPOINTS_KEPT)

    def seat(self, client: int) -> Seat:
        """Where to read a client's rows and where to write the new ones."""
        slot, checksum = self._seats.get(client, (None, None))
        if not self.file.lengths:
            return Seat(None, NO_SLOT)
        if self._free:
            return Seat(slot, self._free.pop(), checksum)
        self._slots += 1
        return Seat(slot, self._slots - 1, checksum)

    def look(self, client: int) -> Seat:
        """Where to read a client's rows, by someone who will not write."""
        slot, checksum = self._seats.get(client, (None, None))
        return Seat(slot, NO_SLOT, checksum)

    def accept(self, client: int, seat: Seat, checksum: int, upload: LastUpload) -> None:
        """The client's rows are now those just written, and this is what it sent."""
        self.uploads[client] = upload
        if self.file.lengths:
            self._seats[client] = seat.write, checksum
            self._release(seat.read)

    def decline(self, seat: Seat) -> None:
        """Nothing came of it: the client's rows are what they were."""
        if self.file.lengths:
            self._release(seat.write)

    def _release(self, slot: int | None) -> None:
        if slot is not None and not any(slot in kept for kept in self._kept):
            self._free.append(slot)

    def last_upload(self, client: int) -> LastUpload:
        """What the client sent last."""
        return self.uploads.get(client, NO_UPLOAD)

    def tensors(self) -> dict[str, Tensor]:
        """All but the rows, for a checkpoint."""
        self.file.sync()
        clients = sorted(self.uploads)
        uploads = msgpack.packb([[c, self.uploads[c].round, dict(self.uploads[c].parts)] for c in clients])
        seats = [[client, slot, checksum] for client, (slot, checksum) in sorted(self._seats.items())]
        return {
            "uploads": torch.frombuffer(bytearray(uploads), dtype=torch.uint8),
            "seats": torch.tensor(seats, dtype=torch.int64).view(-1, 3),
        }

    def kept(self) -> None:
        """A checkpoint of what there is now was kept; what only older ones need is free."""
        before = set().union(*self._kept)
        self._kept.append(frozenset(slot for slot, _ in self._seats.values()))
        self._free += sorted(before.difference(*self._kept))

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        self._seats = {client: (slot, checksum) for client, slot, checksum in tensors["seats"].tolist()}
        stored = msgpack.unpackb(tensors["uploads"].numpy().tobytes(), strict_map_key=False)
        self.uploads = {client: LastUpload(round_, parts) for client, round_, parts in stored}
        taken = [slot for slot, _ in self._seats.values()]
        self._free, self._slots = [], max(taken, default=-1) + 1
        if self.file.lengths:
            # The checkpoint before this one, which is still there, may need any slot: leave all until it is gone.
            self._slots = max(self._slots, self.file.slots)
        self._kept.clear()
        self._kept.extend([frozenset(range(self._slots)), frozenset(taken)])
