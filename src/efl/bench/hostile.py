"""A client that lies, for networks: in turn garbage, an old reply, deep nesting, NaN, and another client's number."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from efl.flower.client import Node
from efl.wire import Context, Dense, Message, TrainRequest, encode

KINDS = ("garbage", "replay", "nested", "nan", "other id")
DEPTH = 1000  # levels
Envelope = dict[str, Any]


def install() -> None:
    """Let the clients of this process lie from now on."""
    setattr(Node, "train", _lying(Node.train))  # noqa: B010  for mypy it is no attribute to change


def _lying(train: Callable[[Node, Any], Any]) -> Callable[[Node, Any], Envelope]:
    @functools.wraps(train)
    def answer(node: Node, envelope: Any) -> Envelope:
        honest = dict(train(node, envelope))
        round_ = TrainRequest.from_bytes(envelope["blob"], node.host().limits).round
        return honest | _lie(node, KINDS[round_ % len(KINDS)], honest.get("blob", b""), round_)

    return answer


def _lie(node: Node, kind: str, blob: bytes, round_: int) -> Envelope:
    """What replaces an honest reply."""
    if kind == "other id":
        return {"client": (node.client + 1) % node.experiment.federation.clients}
    if kind == "replay":
        return {"blob": _first_reply(node, blob)}
    if kind == "nested":
        return {"blob": b"\x91" * DEPTH + blob}
    if kind == "nan" and blob:
        return {"blob": _not_a_number(node, blob)}
    return {"blob": Random(round_).randbytes(500)}


def _first_reply(node: Node, blob: bytes) -> bytes:
    """The first reply that was to be sent, kept in a file; a client's process does not live long."""
    kept = node.directory / f"replay-{node.client}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(blob)
    return kept.read_bytes()


def _not_a_number(node: Node, blob: bytes) -> bytes:
    layout = node.setup.model.layout
    update = encode(Dense(np.full(layout.n, np.nan, np.float32)), Context(layout))
    sent = Message.from_bytes(blob, "reply")
    return replace(sent, parts={**sent.parts, "update": update}).to_bytes()
