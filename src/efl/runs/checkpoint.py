"""Checkpoints: the whole state of a run after a round, in one file, written atomically, with a checksum.

The newest two are kept. The clients' rows lie in a file of their own (`efl.client.state_store`). Everything else about a run
follows from its config.toml and metrics.jsonl.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from efl.algorithms.base import ServerState
from efl.client.host import ClientHost
from efl.server.coordinator import Coordinator
from efl.client.state_store import CHECKPOINTS_KEPT
from efl.errors import UserError, first_line
from efl.storage import read_tensors, write_atomically
from efl.wire import BroadcastLog, Ledger

FORMAT = 4


def save_checkpoint(directory: Path, rounds: int, coordinator: Coordinator, host: ClientHost) -> None:
    """Keep the state after ``rounds`` rounds."""
    host.keep(rounds)
    log = b"".join(coordinator.log.blobs)
    tensors = {
        "server.w": coordinator.server.w,
        "buffers": coordinator.buffers,
        "host.w": host.w,
        "log": torch.from_numpy(np.frombuffer(log, dtype=np.uint8).copy()),
        **_prefixed("server.tensors.", coordinator.server.tensors),
        **_prefixed("roster.", coordinator.table.state_dict()),
        **_prefixed("store.", host.store.tensors()),
        **_prefixed("members.", coordinator.members.state_dict()),
        **_prefixed("clock.", _copies(coordinator.clock.arrays()) if coordinator.clock else {}),
    }
    notes = {
        "rounds": rounds,
        "host_version": host.version,
        "log_base": coordinator.log.base,
        "log_lengths": [len(blob) for blob in coordinator.log.blobs],
        "data": host.trainer.federation.fingerprint,
        "trace": coordinator.clock.trace.fingerprint if coordinator.clock else None,
        "bytes": coordinator.ledger.total,
    }
    write_file(directory / f"round-{rounds:06d}.safetensors", tensors, notes)
    for old in list_checkpoints(directory)[:-CHECKPOINTS_KEPT]:
        old.unlink()
    host.store.kept()


def save_clients(path: Path, rounds: int, host: ClientHost) -> None:
    """Keep the clients of one rank, beside the checkpoint of the run."""
    tensors = {"host.w": host.w, **_prefixed("store.", host.store.tensors())}
    write_file(_of_round(path, rounds), tensors, {"host_version": host.version})
    for old in sorted(path.parent.glob(f"{path.stem}-*.safetensors"))[:-CHECKPOINTS_KEPT]:
        old.unlink()
    host.store.kept()


def load_clients(path: Path, rounds: int, host: ClientHost) -> None:
    """Take over the clients of one rank."""
    try:
        notes, tensors = read_file(_of_round(path, rounds))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise UserError(f"{_of_round(path, rounds)}: missing or damaged ({first_line(error)}); start anew") from None
    host.store.restore(_below("store.", tensors))
    host.w, host.version = tensors["host.w"], notes["host_version"]


def _of_round(path: Path, rounds: int) -> Path:
    return path.with_name(f"{path.stem}-{rounds:06d}.safetensors")


def list_checkpoints(directory: Path) -> list[Path]:
    """The checkpoint files, oldest first."""
    return sorted(directory.glob("round-*.safetensors"))


def load_checkpoint(directory: Path, coordinator: Coordinator, host: ClientHost) -> int:
    """Take over the newest state and return the number of rounds played; 0 if there is none yet."""
    files = list_checkpoints(directory)
    if not files:
        return 0
    try:
        return _restore(files[-1], coordinator, host)
    except UserError:
        raise
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        before = f"from {files[-2].name}" if len(files) > 1 else "from the first round"
        raise UserError(f"{files[-1]}: damaged ({first_line(error)}); delete it to resume {before}") from None


def _restore(path: Path, coordinator: Coordinator, host: ClientHost) -> int:
    notes, tensors = read_file(path)
    if tensors["server.w"].shape != coordinator.server.w.shape:
        raise UserError(
            f"{path} holds a model of {len(tensors['server.w'])} parameters, but the one at hand has "
            f"{len(coordinator.server.w)}; pass the model that the run was started with"
        )
    if len(tensors["roster.requests"]) != len(coordinator.table.requests):
        raise UserError(
            f"{path} has {len(tensors['roster.requests'])} clients, but the federation at hand has "
            f"{len(coordinator.table.requests)}; pass the one that the run was started with"
        )
    if notes["data"] != host.trainer.federation.fingerprint:
        raise UserError(f"{path} is of a run on other data than those at hand; pass those it was started with")
    coordinator.server = ServerState(tensors["server.w"], _below("server.tensors.", tensors))
    coordinator.buffers = tensors["buffers"]
    coordinator.table.load_state_dict(_below("roster.", tensors))
    coordinator.members.load_state_dict(_below("members.", tensors))
    if coordinator.clock is not None:
        if notes["trace"] != coordinator.clock.trace.fingerprint:
            raise UserError(f"{path} is of a run with another trace; put back the one it was started with")
        _put_back(coordinator.clock.arrays(), _below("clock.", tensors))
    log, ends = tensors["log"].numpy().tobytes(), np.cumsum([0, *notes["log_lengths"]]).tolist()
    blobs = tuple(log[start:end] for start, end in pairwise(ends))
    coordinator.log = BroadcastLog(notes["log_base"], blobs)
    coordinator.ledger = Ledger({"up": Counter(notes["bytes"]["up"]), "down": Counter(notes["bytes"]["down"])})
    host.store.restore(_below("store.", tensors))
    host.w, host.version = tensors["host.w"], notes["host_version"]
    host.restore(int(notes["rounds"]))
    return int(notes["rounds"])


def write_file(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Tensors and notes in one file, atomically, with a checksum."""
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"format": FORMAT, "sha256": _digest(tensors), **notes})
    write_atomically(path, save(tensors, {"notes": text}))


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write_file` wrote."""
    texts, tensors = read_tensors(path)
    notes = json.loads(texts["notes"])
    if notes["format"] != FORMAT:
        raise ValueError(f"format {notes['format']}, expected {FORMAT}")
    if notes["sha256"] != _digest(tensors):
        raise ValueError("checksum does not match")
    return notes, tensors


def _copies(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def _put_back(arrays: Mapping[str, NDArray[Any]], tensors: Mapping[str, Tensor]) -> None:
    for name, array in arrays.items():
        array[:] = tensors[name].numpy()


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()
