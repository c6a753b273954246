"""Error feedback (Seide et al. 2014, Karimireddy et al. 2019): what compression left out goes with the next message.

A client adds what it moved to its residual, Δ^k = R^k + δ^k, sends C(Δ^k), and keeps R^k = Δ^k − C(Δ^k). The server
does the same with the aggregate. So over time everything that was produced is sent. A client whose last upload never
reached the server takes it back into R^k; where nothing is compressed, all of it was left out, and is sent again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from efl.algorithms.components.reduction import Aggregate
from efl.algorithms.compression.codec import CODECS, Codec, Direction, OnSent
from efl.algorithms.compression.ternary import SparseTernary
from efl.algorithms.state import UPDATE, Part, RoundSettings, ServerState
from efl.training.local_work import LocalWork
from efl.wire import Payload

RESIDUAL = "residual"
UNCOMPRESSED_MODEL = "own"


@CODECS.register("error_feedback")
class ErrorFeedback(Codec):
    """Residuals on both sides of another codec.

    Attributes:
        codec: What compresses.
        resend: Whether clients take a lost upload back into their residual.
        server_applies: What the server adds to the model that is evaluated: what it ``broadcast``, or, as in the EFL
            paper, the uncompressed ``aggregate``, residual included.
        sides: Who keeps a residual: ``both``, or only the ``server``, where uploads lose nothing on average.
    """

    codec: Codec = SparseTernary()
    resend: bool = True
    server_applies: Literal["broadcast", "aggregate"] = "broadcast"
    sides: Literal["both", "server"] = "both"

    def __post_init__(self) -> None:
        """The codec has checked itself."""

    @property
    def part(self) -> Part:
        """The codec's, kept until it is known to have arrived."""
        return replace(self.codec.part, resend=self.resend and self.compresses("up"))

    def start(self, w: Tensor) -> Tensor:
        """As the codec needs it."""
        return self.codec.start(w)

    def compresses(self, direction: Direction) -> bool:
        """As the codec does."""
        return self.codec.compresses(direction)

    def compress(self, deltas: Tensor, direction: Direction, settings: RoundSettings) -> Sequence[Payload]:
        """As the codec does, without residuals."""
        return self.codec.compress(deltas, direction, settings)

    def fidelity(self, sent: Payload, settings: RoundSettings) -> float:
        """Of the codec."""
        return self.codec.fidelity(sent, settings)

    def client_state(self, n: int) -> Mapping[str, int]:
        """R^k; where nothing is compressed, all of Δ^k, until the server is known to have it."""
        return {RESIDUAL: n} if self.sides == "both" and (self.compresses("up") or self.resend) else {}

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """R^G, and the server's own model where it is another than the clients'."""
        residual = {RESIDUAL: torch.zeros_like(w)} if self.compresses("down") else {}
        return {**self.codec.init(w), **residual} | (
            {UNCOMPRESSED_MODEL: w.clone()} if self.server_applies == "aggregate" else {}
        )

    def encode_up(self, work: LocalWork, on_sent: OnSent | None = None) -> Sequence[Payload]:
        """C(Δ^k) with Δ^k = R^k + δ^k; the rest stays in R^k."""
        if self.sides == "server":
            return self.codec.encode_up(work, on_sent)
        if not self.compresses("up"):
            return self._resent(work, on_sent) if self.resend else self.codec.encode_up(work, on_sent)
        total = work.add_delta(self._residual(work))
        if on_sent is not None:
            total = on_sent(total, work)
        sent = self.codec.compress(total, "up", work.settings)
        work.state[RESIDUAL] = _left(total, sent)
        return sent

    def _residual(self, work: LocalWork) -> Tensor:
        """R^k of the last round, or all of Δ^k if the server never got C(Δ^k)."""
        residual = work.state[RESIDUAL]
        for row, one in zip(residual.numpy(), work.assignments, strict=True):
            if self.resend and one.undelivered is not None and UPDATE in one.undelivered:
                one.undelivered[UPDATE].add_to(row, 1.0, row)
        return residual

    def _resent(self, work: LocalWork, on_sent: OnSent | None) -> Sequence[Payload]:
        """Whole models, moved further by what of the last round was lost."""
        lost = torch.tensor([one.undelivered is not None for one in work.assignments]).unsqueeze(1)
        residual = torch.where(lost, work.state[RESIDUAL], 0.0)
        total = work.add_delta(residual.clone())
        if on_sent is not None:
            total = on_sent(total, work)
        work.state[RESIDUAL] = total
        # W + R rather than start + Δ: without scale and residual it is W bit for bit, whoever trains beside it.
        models = work.models if on_sent is None else None
        return self.codec.whole_models(work.start + total if models is None else models + residual)

    def encode_down(
        self, aggregate: Aggregate, server: ServerState, settings: RoundSettings
    ) -> tuple[Payload, ServerState]:
        """B = C(Δ^G) with Δ^G = R^G + aggregate; the rest stays in R^G."""
        if not self.compresses("down"):
            if self.server_applies == "aggregate":
                server = self._applied(server, aggregate.delta)
            return self.codec.encode_down(aggregate, server, settings)
        total = server.tensors[RESIDUAL] + aggregate.delta
        if self.server_applies == "aggregate":
            server = self._applied(server, total)
        sent, server = self.codec.encode_down(aggregate.having(total), server, settings)
        return sent, server.having(**{RESIDUAL: _left(total.unsqueeze(0), [sent])[0]})

    def _applied(self, server: ServerState, total: Tensor) -> ServerState:
        return server.having(**{UNCOMPRESSED_MODEL: server.tensors[UNCOMPRESSED_MODEL] + total})


def _left(total: Tensor, sent: Sequence[Payload]) -> Tensor:
    """Take what was ``sent`` out of the rows, in place; what is left is the residual."""
    for row, payload in zip(total.numpy(), sent, strict=True):
        payload.add_to(row, -1.0, row)
    return total
