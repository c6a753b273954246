"""What a client on a machine of its own keeps between rounds: one file for each client and run, written atomically.

It holds the rows of the algorithm (the residual), the copy of the model and its version, the last upload until it is
known to have arrived, and the last request with the reply to it. The file is written before the reply is sent. So a
client that is stopped at any moment has either not replied yet, or remembers that it did; and one that receives the
same request again, because the server was stopped, gives the same reply and does not do the work twice.

A file that cannot be read is set aside. Its client is then as one that never took part: it asks for the whole model,
and goes on with the next request.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import torch
from platformdirs import user_state_path
from torch import Tensor

from efl.client.host import ClientHost
from efl.errors import UserError, first_line, reason
from efl.reading import parse_msgpack
from efl.storage import State, read_state, write_state

log = logging.getLogger("efl")
BUSY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)  # of a machine, not of a damaged file
DAMAGED = ".damaged"  # how the name of a file ends that was set aside


@dataclass(frozen=True)
class CachedReply:
    """A request, by its hash, and what came of it: steps done, and the reply, if there was one."""

    request: str
    steps: int
    reply: bytes | None

    def state_dict(self) -> dict[str, Any]:
        """For `write_state`."""
        return {
            "request": self.request,
            "steps": self.steps,
            "replied": self.reply is not None,
            "reply": _bytes(self.reply or b""),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> CachedReply:
        """The reply that `state_dict` was taken of."""
        reply = state["reply"].numpy().tobytes() if state["replied"] else None
        return cls(str(state["request"]), int(state["steps"]), reply)


def request_hash(request: bytes) -> str:
    """By which a request is recognised."""
    return hashlib.sha256(request).hexdigest()


class StateFile:
    """The file of one client in one run."""

    def __init__(self, directory: Path, run: str, client: int) -> None:
        if not run.isalnum():
            raise UserError(f"{run!r:.40} is not the name of a run")
        self.client = client
        self.path = directory / run / f"client-{client}.safetensors"

    def load(self, make_host: Callable[[], ClientHost]) -> tuple[ClientHost, CachedReply | None]:
        """A host with the state in the file, if there is one, and the last reply; a damaged file is set aside."""
        host = make_host()
        if not self.path.exists():
            return host, None
        try:
            state = read_state(self.path, {4: self._from_format_4})
            cached = CachedReply.from_state_dict(state["cached"])
            if state["host"]["w"].shape != host.w.shape:
                raise ValueError("it is of another model")
            host.load_state_dict(state["host"])
        except Exception as error:  # whatever the bytes are: nothing about them may end the client's part in the run
            if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in BUSY):
                raise
            self._set_aside(error)
            return make_host(), None
        return host, cached

    def _set_aside(self, error: Exception) -> None:
        aside = self.path.with_name(self.path.name + DAMAGED)
        try:
            os.replace(self.path, aside)
        except OSError as failure:
            raise UserError(f"{self.path}: damaged, and cannot be set aside ({failure.strerror})") from None
        log.warning("%s is damaged (%s); kept as %s, begins with the whole model", self.path, reason(error), aside.name)

    def save(self, host: ClientHost, cached: CachedReply) -> None:
        """Write the host's state, and its last reply."""
        state = host.state_dict(rows=True)
        del state["data"]  # a client may get more data while it takes part
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_state(self.path, {"host": state, "cached": cached.state_dict()})
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror or first_line(error)})") from None

    def _from_format_4(self, notes: dict[str, Any], tensors: dict[str, Tensor]) -> State:
        """The state in a file of elastic-fl 0.1."""
        upload = [self.client, int(notes["round"]), parse_msgpack(tensors["upload"].numpy().tobytes())]
        rows = {name.removeprefix("rows."): row[None] for name, row in tensors.items() if name.startswith("rows.")}
        rows = {"known" if name == "told" else name: row for name, row in rows.items()}  # of SCAFFOLD
        store: State = {"uploads": _bytes(msgpack.packb([upload])), "rows": rows}
        store["slots"] = torch.tensor([[self.client, 0, 0]] if rows else [], dtype=torch.int64).view(-1, 3)
        cached = {key: notes[key] for key in ("request", "steps", "replied")} | {"reply": tensors["reply"]}
        return {"host": {"w": tensors["w"], "version": notes["version"], "store": store}, "cached": cached}


def state_directory(chosen: str | None) -> Path:
    """Where clients keep their files: as the node's configuration says, or where programs of this user do."""
    if chosen:
        return Path(chosen)
    return user_state_path("efl", appauthor=False)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
