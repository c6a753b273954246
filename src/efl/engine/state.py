"""What clients keep between rounds: named rows (n,), and what they sent last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgpack
import torch
from torch import Tensor

from efl.algorithms.base import Parts
from efl.wire import Context, Layout, decode, encode

NEVER = -1


@dataclass(frozen=True)
class LastUpload:
    """The round of a client's last upload, and the parts it keeps until they are known to have arrived."""

    round: int
    parts: Parts


NO_UPLOAD = LastUpload(NEVER, {})


class StateStore:
    """Client state in memory. A client that never took part holds zeros and takes no room."""

    def __init__(self, names: Sequence[str], layout: Layout) -> None:
        self.names, self.n, self._context = tuple(names), layout.n, Context(layout)
        self.rows: dict[int, dict[str, Tensor]] = {}
        self.uploads: dict[int, LastUpload] = {}

    def read(self, clients: Sequence[int]) -> dict[str, Tensor]:
        """The rows of these clients as one matrix a name."""
        zero = torch.zeros(self.n)
        return {
            name: torch.stack([self.rows[client][name] if client in self.rows else zero for client in clients])
            for name in self.names
        }

    def last_upload(self, client: int) -> LastUpload:
        """What the client sent last."""
        return self.uploads.get(client, NO_UPLOAD)

    def write(self, client: int, state: Mapping[str, Tensor], upload: LastUpload) -> None:
        """Renew a client's rows, after an upload."""
        self.rows[client] = {name: state[name].clone() for name in self.names}
        self.uploads[client] = upload

    def tensors(self) -> dict[str, Tensor]:
        """Everything, for a checkpoint."""
        clients = sorted(self.uploads)
        uploads = msgpack.packb(
            [[client, self.uploads[client].round, self._packed(self.uploads[client].parts)] for client in clients]
        )
        rows = self.read(clients) if clients else {}
        return {"uploads": torch.frombuffer(bytearray(uploads), dtype=torch.uint8)} | {
            f"row.{name}": matrix for name, matrix in rows.items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        self.rows.clear()
        self.uploads.clear()
        for row, (client, round_, parts) in enumerate(msgpack.unpackb(tensors["uploads"].numpy().tobytes())):
            self.rows[client] = {name: tensors[f"row.{name}"][row].clone() for name in self.names}
            self.uploads[client] = LastUpload(
                round_, {name: decode(blob, self._context) for name, blob in parts.items()}
            )

    def _packed(self, parts: Parts) -> dict[str, bytes]:
        return {name: encode(part, self._context) for name, part in parts.items()}
