"""A host's copy of the server's model, and the way it got there.

The server counts versions of its model, and sends each client what leads from the version it knows the client to have
to the present one. A host's copy may be newer than that: another client on the host was sampled since, or a reply was
lost, so that the server does not know. Single broadcasts it has already seen are left out. Of broadcasts that were
summed it cannot leave any out; it goes back to the version they start from instead. They lie on a grid, so that taking
a change back is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efl.errors import WireError
from efl.storage import checksum
from efl.wire import Context, Lattice, TrainRequest, decode, encode, received
from efl.wire.catchup import FURTHEST, longest_log

NO_VERSION = -1  # of a host that has no model yet


class ModelCopy:
    """The newest model that a host received.

    Args:
        first: The model training starts from, which the host can make itself.
        context: What it knows of the model.
    """

    def __init__(self, first: Tensor, context: Context) -> None:
        self.first, self.context = first, context
        self.w, self.version = torch.zeros_like(first), NO_VERSION
        self._changes: list[tuple[int, int, bytes]] = []  # from a version to another, the oldest first
        self._clients: dict[int, int] = {}  # the oldest version that each client may be sent changes from

    def can_receive(self, request: TrainRequest) -> bool:
        """Whether the model that a request builds on is here, or can be made: the first one, if it is the server's."""
        if request.how == "model":
            return True
        if self.version == NO_VERSION:
            return request.start == checksum(self.first.numpy())
        if request.how == "summed" and self.version < request.version:
            return self._reaches(request.base)
        return request.base <= self.version <= request.version

    def receive(self, request: TrainRequest, context: Context) -> None:
        """Apply what the host has not seen; ``base`` is the version before the first of the request's broadcasts.

        A whole model is always taken: a server that was put back to an earlier round counts some versions twice.
        """
        self._clients[request.client] = request.base if request.base > 0 else request.version
        if self.version == request.version and request.how != "model":
            return
        changes = received(request.how, request.log, context)
        if request.how == "model":
            self._changes.clear()
        elif self.version == NO_VERSION:
            self.w, self.version = self.first.clone(), 0
        if request.how == "summed":
            (change,) = changes
            self._add(change, request)
            return
        if request.how != "model":
            if not request.base <= self.version <= request.version or len(changes) != request.version - request.base:
                raise WireError(f"broadcasts {request.base} … {request.version} do not continue version {self.version}")
            changes = changes[self.version - request.base :]
        w, version = self.w.numpy(), self.version
        for change in changes:
            w = change.onto(w)
            version += 1
            self._note(version - 1, version, change)
        self.w, self.version = torch.from_numpy(w), request.version
        self._forget()

    def _add(self, change: object, request: TrainRequest) -> None:
        """Add a sum of broadcasts to the version it starts from."""
        if not isinstance(change, Lattice) or not self._reaches(request.base):
            raise WireError(f"a sum from version {request.base} does not continue version {self.version}")
        base, step = self._at(request.base)
        w, step = change.onto(base), min(step, change.step)
        codes = np.rint((w - self.w.numpy()) / np.float32(step)).astype(np.int32)
        self._note(self.version, request.version, Lattice.of(self.context.layout, codes, step))
        self.w, self.version = torch.from_numpy(w), request.version
        self._forget()

    def _reaches(self, version: int) -> bool:
        """Whether the model can be taken back to a version."""
        return version in (0, self.version) or any(before == version for before, _, _ in self._changes)

    def _at(self, version: int) -> tuple[Any, float]:
        """The model of an earlier version, and the least step of the changes since."""
        if version == self.version:
            return self.w.numpy(), np.inf
        since = [decode(blob, self.context) for before, _, blob in self._changes if before >= version]
        steps = [change.step for change in since if isinstance(change, Lattice)]
        if version == 0 and not (self._changes and self._changes[0][0] == 0):
            return self.first.numpy(), min(steps, default=np.inf)
        w = self.w.numpy().copy()
        for change in since:
            change.add_to(w, -1.0, w)
        return w, min(steps)

    def _note(self, before: int, after: int, change: object) -> None:
        if isinstance(change, Lattice):
            self._changes.append((before, after, encode(change, self.context)))

    def _forget(self) -> None:
        """Changes that no client of this host will ask to be taken back, and those too far back."""
        oldest, longest = min(self._clients.values()), longest_log(self.context.layout.n)
        while self._changes and (
            self._changes[0][0] < oldest
            or len(self._changes) > FURTHEST
            or sum(len(blob) for _, _, blob in self._changes) > longest
        ):
            self._changes.pop(0)

    def state_dict(self) -> dict[str, Any]:
        """The model, its version, and the way back."""
        blob = torch.from_numpy(np.frombuffer(b"".join(blob for _, _, blob in self._changes), dtype=np.uint8).copy())
        changes = [[before, after, len(blob)] for before, after, blob in self._changes]
        clients = [[client, version] for client, version in self._clients.items()]
        return {"w": self.w, "version": self.version, "changes": changes, "blobs": blob, "clients": clients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; older ones knew no way back."""
        self.w, self.version = state["w"], int(state["version"])
        changes = state.get("changes", [])
        blob = state["blobs"].numpy().tobytes() if changes else b""
        ends = pairwise(accumulate((length for _, _, length in changes), initial=0))
        self._changes = [(b, a, blob[start:end]) for (b, a, _), (start, end) in zip(changes, ends, strict=True)]
        self._clients = {int(client): int(version) for client, version in state.get("clients", [])}
