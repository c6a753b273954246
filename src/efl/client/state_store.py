"""What clients keep between rounds: named rows, most as long as the model, and their last uploads.

The rows lie in a file, one slot for a client's rows; only the slots of a round's cohort are touched, and a client that
never took part has none. A client's new rows always go to a free slot, and a slot is free only when no checkpoint that
is kept needs it. A checkpoint stores the client-to-slot map; the rows it refers to stay in the state file. Several
processes share the file: each job says where to read and where to write.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.errors import UserError
from efl.reading import parse_msgpack
from efl.storage import checksum

NO_ROUND = -1
NO_SLOT = -1
CHECKPOINTS_KEPT = 2
PAGE = 4096
NO_FILE = -1
CRC32 = "crc32"  # the checksum of rows; checkpoints that do not say so have a sum of their words


class LastUpload(NamedTuple):
    """The round of a client's last upload, and the encoded parts it keeps until they are known to have arrived."""

    round: int
    parts: Mapping[str, bytes]


class Slot(NamedTuple):
    """Where a client's rows are read (None: they are zero) and where the new ones go, with a checksum."""

    read: int | None
    write: int
    checksum: int | None = None


CORRUPT = "checkpoint/clients.rows is corrupt; start a new run"
NO_UPLOAD = LastUpload(NO_ROUND, {})


class RowsFile:
    """Rows in a file, by slot; any number of processes may have it open."""

    def __init__(self, lengths: Mapping[str, int], path: Path | None = None) -> None:
        self.lengths = dict(lengths)
        self.bytes = 4 * sum(self.lengths.values())
        self.slot_bytes = -(-self.bytes // PAGE) * PAGE
        self._file = NO_FILE
        if self.lengths:
            self._file = _opened(path)
            weakref.finalize(self, os.close, self._file)

    def read(self, slots: Sequence[Slot]) -> dict[str, Tensor]:
        """The rows in these slots, as one matrix per name; the matrices lie side by side in memory."""
        together = np.empty((len(slots), self.bytes // 4), dtype=np.float32)
        for rows, slot in zip(together, slots, strict=True):
            if slot.read is None:
                rows.fill(0)
            else:
                self._read(slot.read, slot.checksum, rows)
        ends = pairwise(accumulate(self.lengths.values(), initial=0))
        return {name: torch.from_numpy(together[:, a:b]) for name, (a, b) in zip(self.lengths, ends, strict=True)}

    def _read(self, slot: int, expected: int | None, rows: NDArray[np.float32]) -> None:
        if _transferred(os.preadv, self._file, [_bytes(rows)], slot * self.slot_bytes) < self.bytes:
            raise UserError(CORRUPT)
        if expected is not None and checksum(rows) != expected:
            raise UserError(CORRUPT)

    def write(self, slot: int, rows: Sequence[Tensor]) -> int:
        """Put rows into a slot; their checksum."""
        arrays = [row.numpy() for row in rows]
        if _transferred(os.pwritev, self._file, [_bytes(row) for row in arrays], slot * self.slot_bytes) < self.bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "clients.rows")
        return _checksum(arrays)

    @property
    def slots(self) -> int:
        """How many slots the file has room for."""
        return 0 if self._file == NO_FILE else -(-os.fstat(self._file).st_size // self.slot_bytes)

    def sync(self) -> None:
        """Make sure that what was written survives a power cut."""
        if self._file != NO_FILE:
            os.fsync(self._file)


def _opened(path: Path | None) -> int:
    """A file to read and write, by its number; without a path, one that nobody else can see."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0), 0o666)
        except OSError as error:
            raise UserError(f"{path}: cannot be opened ({error.strerror})") from None
        if stat.S_ISREG(os.fstat(found).st_mode):
            return found
        os.close(found)
        raise UserError(f"{path}: not a regular file; start a new run")
    file, name = tempfile.mkstemp(prefix="efl-")
    os.unlink(name)
    return file


def _bytes(row: NDArray[np.float32]) -> memoryview:
    """A row's memory."""
    return row.view(np.uint8).data


def _transferred(transfer: Callable[..., int], file: int, memory: list[memoryview], place: int) -> int:
    """Read or write all of ``memory``, in as many calls as it takes; how many bytes it was until there were no more."""
    done, wanted = transfer(file, memory, place), sum(map(len, memory))
    while 0 < done < wanted:
        starts = accumulate(map(len, memory), initial=0)
        rest = [piece[max(0, done - start) :] for piece, start in zip(memory, starts, strict=False)]
        some = transfer(file, [piece for piece in rest if piece], place + done)
        if not some:
            break
        done += some
    return done


def _checksum(rows: Sequence[NDArray[np.float32]]) -> int:
    """CRC-32 of all rows in a row."""
    found = 0
    for row in rows:
        found = checksum(row, found)
    return found


def _sum(rows: Sequence[NDArray[np.float32]]) -> int:
    """What checkpoints had before, which does not notice words that changed places."""
    return sum(int(np.add.reduce(row.view(np.uint32), dtype=np.uint32)) for row in rows)


class StateStore:
    """Which client's rows are in which slot, and every client's last upload."""

    def __init__(self, lengths: Mapping[str, int], path: Path | None = None) -> None:
        self.file = RowsFile(lengths, path)
        self.uploads: dict[int, LastUpload] = {}
        self._slots: dict[int, tuple[int, int]] = {}  # client → slot, checksum
        self._free: list[int] = []
        self._count = 0  # slots used so far
        self._checkpointed: deque[frozenset[int]] = deque(maxlen=CHECKPOINTS_KEPT)

    def reserve(self, client: int) -> Slot:
        """Where to read a client's rows and where to write the new ones."""
        slot, checksum = self._slots.get(client, (None, None))
        if not self.file.lengths:
            return Slot(None, NO_SLOT)
        if self._free:
            return Slot(slot, self._free.pop(), checksum)
        self._count += 1
        return Slot(slot, self._count - 1, checksum)

    def current(self, client: int) -> Slot:
        """Where to read a client's rows, for a job that will not write."""
        slot, checksum = self._slots.get(client, (None, None))
        return Slot(slot, NO_SLOT, checksum)

    def accept(self, client: int, slot: Slot, checksum: int, upload: LastUpload) -> None:
        """The client's rows are now those just written, and this is its last upload."""
        self.uploads[client] = upload
        if self.file.lengths:
            self._slots[client] = slot.write, checksum
            self._release(slot.read)

    def decline(self, slot: Slot) -> None:
        """The client's rows stay what they were; the reserved slot is free again."""
        if self.file.lengths:
            self._release(slot.write)

    def _release(self, slot: int | None) -> None:
        if slot is not None and not any(slot in kept for kept in self._checkpointed):
            self._free.append(slot)

    def last_upload(self, client: int) -> LastUpload:
        """What the client sent last."""
        return self.uploads.get(client, NO_UPLOAD)

    def state_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """Slots and uploads; with ``rows``, the rows themselves, for whoever does not keep the file."""
        self.file.sync()
        clients = sorted(self.uploads)
        uploads = msgpack.packb([[c, self.uploads[c].round, dict(self.uploads[c].parts)] for c in clients])
        slots = [[client, slot, checksum] for client, (slot, checksum) in sorted(self._slots.items())]
        state: dict[str, Any] = {
            "uploads": torch.frombuffer(bytearray(uploads), dtype=torch.uint8),
            "slots": torch.tensor(slots, dtype=torch.int64).view(-1, 3),
            "checksum": CRC32,
        }
        return state | ({"rows": self.file.read([self.current(client) for client, *_ in slots])} if rows else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._slots = {client: (slot, checksum) for client, slot, checksum in state["slots"].tolist()}
        stored = parse_msgpack(state["uploads"].numpy().tobytes())
        self.uploads = {client: LastUpload(round_, parts) for client, round_, parts in stored}
        if "rows" in state:
            rows = [[state["rows"][name][row] for name in self.file.lengths] for row in range(len(self._slots))]
            self._slots = {client: (row, self.file.write(row, rows[row])) for row, client in enumerate(self._slots)}
        elif state.get("checksum") != CRC32:
            self._slots = {
                client: (slot, self._renewed(slot, before)) for client, (slot, before) in self._slots.items()
            }
        taken = [slot for slot, _ in self._slots.values()]
        self._free, self._count = [], max(taken, default=-1) + 1
        if self.file.lengths:
            # The checkpoint before this one, which is still there, may need any slot: leave all until it is gone.
            self._count = max(self._count, self.file.slots)
        self._checkpointed.clear()
        self._checkpointed.extend([frozenset(range(self._count)), frozenset(taken)])

    def _renewed(self, slot: int, before: int) -> int:
        """The checksum of a slot's rows, seen to have the sum they had before there were such checksums."""
        rows = [matrix[0].numpy() for matrix in self.file.read([Slot(slot, NO_SLOT)]).values()]
        if _sum(rows) != before:
            raise UserError(CORRUPT)
        return _checksum(rows)

    def checkpointed(self) -> None:
        """A checkpoint of the current state was kept: slots that only older ones need are free."""
        before = set().union(*self._checkpointed)
        self._checkpointed.append(frozenset(slot for slot, _ in self._slots.values()))
        self._free += sorted(before.difference(*self._checkpointed))
