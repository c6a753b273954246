"""What clients keep between rounds: named rows (n,) by client, and the round of their last upload."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

NEVER = -1


class StateStore:
    """Client state in memory. A client that never took part holds zeros and takes no room."""

    def __init__(self, names: Sequence[str], n: int) -> None:
        self.names, self.n = tuple(names), n
        self.rows: dict[int, dict[str, Tensor]] = {}
        self.last_upload: dict[int, int] = {}

    def read(self, clients: Sequence[int]) -> dict[str, Tensor]:
        """The rows of these clients as one matrix a name."""
        zero = torch.zeros(self.n)
        return {
            name: torch.stack([self.rows[client][name] if client in self.rows else zero for client in clients])
            for name in self.names
        }

    def write(self, clients: Sequence[int], state: Mapping[str, Tensor], round_: int) -> None:
        """Renew the rows of these clients, which sent an upload in ``round_``."""
        for row, client in enumerate(clients):
            self.rows[client] = {name: state[name][row].clone() for name in self.names}
            self.last_upload[client] = round_

    def tensors(self) -> dict[str, Tensor]:
        """Everything, for a checkpoint."""
        clients = sorted(self.last_upload)
        result = {
            "clients": torch.tensor(clients, dtype=torch.int64),
            "last_upload": torch.tensor([self.last_upload[client] for client in clients], dtype=torch.int64),
        }
        return result | {f"row.{name}": matrix for name, matrix in self.read(clients).items() if clients}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        self.rows.clear()
        self.last_upload.clear()
        for row, (client, last) in enumerate(
            zip(tensors["clients"].tolist(), tensors["last_upload"].tolist(), strict=True)
        ):
            self.rows[client] = {name: tensors[f"row.{name}"][row].clone() for name in self.names}
            self.last_upload[client] = last
