"""Checkpoints of elastic-fl 0.1 (format 4), as a state of today."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from efl.storage import State

RENAMED = {"asked": "requests", "answered": "replies", "told": "covered"}


def from_format_4(notes: dict[str, Any], tensors: dict[str, Tensor]) -> State:
    """The state in a checkpoint of elastic-fl 0.1; with several ranks, whose clients are not in it, it is refused."""
    server = {
        "w": tensors["server.w"],
        "tensors": _renamed(_below("server.tensors.", tensors)),
        "buffers": tensors["buffers"],
        "table": _renamed(_below("roster.", tensors)),
        "members": _below("members.", tensors),
        "log": {"base": notes["log_base"], "lengths": notes["log_lengths"], "blobs": tensors["log"]},
        "ledger": notes["bytes"],
        "rejected_rounds": 0,
    }
    store = {"uploads": tensors["store.uploads"], "slots": tensors["store.seats"]}
    host = {"w": tensors["host.w"], "version": notes["host_version"], "store": store, "data": notes["data"]}
    clock = _below("clock.", tensors) | {"trace": notes["trace"]}
    return {"rounds": notes["rounds"], "server": server, "transport": {"host": host, "clock": clock}}


def _renamed(tensors: dict[str, Any]) -> dict[str, Any]:
    return {RENAMED.get(name, name): tensor for name, tensor in tensors.items()}


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
