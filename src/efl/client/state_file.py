"""What a client on a machine of its own keeps between rounds: one file for each client and run, written atomically.

It holds the rows of the algorithm (the residual), the copy of the model and its version, the last upload until it is
known to have arrived, and the last request with the reply to it. The file is written before the reply is sent. So a
client that is stopped at any moment has either not answered yet, or remembers that it did; and one that is asked the
same again, because the server was stopped, gives the same answer and does not do the work twice.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgpack
import torch
from safetensors import SafetensorError

from efl.client.host import ClientHost
from efl.client.state_store import LastUpload
from efl.errors import UserError, first_line
from efl.runs.checkpoint import read_file, write_file


@dataclass(frozen=True)
class Answered:
    """A request that was answered, by its hash, and the answer: steps done, and the reply, if there was one."""

    request: str
    steps: int
    reply: bytes | None


def digest(request: bytes) -> str:
    """What a request is known by."""
    return hashlib.sha256(request).hexdigest()


class Memory:
    """The file of one client in one run."""

    def __init__(self, directory: Path, run: str, client: int) -> None:
        if not run.isalnum():
            raise UserError(f"{run!r:.40} names no run")
        self.client = client
        self.path = directory / run / f"client-{client}.safetensors"

    def recall(self, host: ClientHost) -> Answered | None:
        """Give the host what was kept, if anything was; the last answer."""
        if not self.path.exists():
            return None
        try:
            notes, tensors = read_file(self.path)
            host.w, host.version = tensors["w"], int(notes["version"])
            upload = LastUpload(int(notes["round"]), msgpack.unpackb(tensors["upload"].numpy().tobytes()))
            seat = host.store.seat(self.client)
            rows = [tensors[f"rows.{name}"] for name in host.store.file.lengths]
            checksum = host.store.file.write(seat.write, rows) if rows else 0
            host.store.accept(self.client, seat, checksum, upload)
            reply = tensors["reply"].numpy().tobytes() if notes["replied"] else None
            return Answered(str(notes["request"]), int(notes["steps"]), reply)
        except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
            raise UserError(f"{self.path}: damaged ({first_line(error)}); delete it to begin anew") from None

    def keep(self, host: ClientHost, answered: Answered) -> None:
        """Write down what the host has now, and what it answered."""
        rows = host.store.file.read([host.store.look(self.client)])
        upload = host.store.last_upload(self.client)
        tensors = {
            "w": host.w,
            "upload": _bytes(msgpack.packb(dict(upload.parts))),
            "reply": _bytes(answered.reply or b""),
            **{f"rows.{name}": row[0] for name, row in rows.items()},
        }
        notes = {
            "version": host.version,
            "round": upload.round,
            "request": answered.request,
            "steps": answered.steps,
            "replied": answered.reply is not None,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.path, tensors, notes)


def state_directory(chosen: str | None) -> Path:
    """Where clients keep their files: as the node's configuration says, or where programs of this user do."""
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "efl"


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
