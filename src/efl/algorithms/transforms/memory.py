"""A memory on both sides: clients send what is new in their update, the server adds what it remembers of all.

Client k keeps y_k, what the server has been sent of its update per unit of ηE, and sends Δ_k − ηE·y_k. The server
keeps h ≈ Σ p^k y_k, adds ηE·h to the aggregate, and renews it by what arrived. So clients that were not sampled count
with their last known update (as in SAGA), and what is sent becomes smaller as training settles. Both sides let their
memories fade alike, by γ per round: they need not tell each other.

What was sent is remembered by α = 1/(1 + ω) of itself, where ω is its relative variance (DIANA, Mishchenko et al.
2019): where ω > 1, the noise of one upload, remembered in full, would be more than what was meant, and the next upload
that takes it back noisier still.

A late update was sent per unit of its own round's ηE, by a client whose memory had faded for fewer rounds. So it counts
ηE_now/ηE_then · γ^τ times: then just what the client took out of it is what h adds. It is remembered as it has faded
since: by γ^τ.

What is remembered is what was sent, not what was meant: an upload's noise is not taken for what is new when its
sender returns. A lost upload was never received, so the client forgets it as well. Where a residual brings later what
was not sent now, and lost uploads too, it is the other way round: what was meant is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from efl.algorithms.components.shares import fade, powers
from efl.algorithms.compression.codec import Codec, Uncompressed
from efl.algorithms.state import UPDATE, RoundSettings, ServerState, Update
from efl.algorithms.transform import TRANSFORMS, Transform
from efl.errors import UserError
from efl.training.local_work import LocalWork
from efl.wire import Payload

REMEMBERED = "remembered"  # y_k, per unit of ηE
PACE = "pace"  # ηE/α of its last renewal
LAST_ROUND = "memory_round"


@TRANSFORMS.register("memory")
class Memory(Transform):
    """See the module.

    Attributes:
        of: What clients remember: what was ``sent``, or ``meant``.
        codec: How it is sent.
    """

    keeps_uploads: ClassVar[bool] = True
    of: Literal["sent", "meant"] = "sent"
    codec: Codec = Uncompressed()

    def __post_init__(self) -> None:
        """The codec has checked itself."""

    def client_state(self, n: int) -> Mapping[str, int]:
        """y_k, and the pace of its last renewal."""
        return {REMEMBERED: n, PACE: 1}

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """H = 0."""
        return {"memory": torch.zeros_like(w), LAST_ROUND: torch.zeros(1)}

    def on_client(self, delta: Tensor, work: LocalWork) -> Tensor:
        """Δ − ηE·y, with y as it has faded since."""
        pace, remembered = _pace(work.settings), work.state[REMEMBERED]
        if self.of == "sent":
            self._forget_lost(work)
        remembered *= powers(fade(work.settings.clients), work.rounds_since_upload)
        known = pace * remembered
        return torch.sub(delta, known, out=known)

    def on_encoded(self, work: LocalWork, updates: Sequence[Payload]) -> None:
        """Y ← y + û/(ηE), or what was meant in place of û."""
        pace = _pace(work.settings)
        if any(update.absolute for update in updates):
            raise UserError("memory: updates travel as whole models; it needs a codec that sends what changed")
        if self.of == "meant":
            work.state[REMEMBERED] += work.delta / pace
        else:
            for row, update in zip(work.state[REMEMBERED].numpy(), updates, strict=True):
                update.add_to(row, self.codec.fidelity(update, work.settings) / pace, work.start.numpy())
        kept = [self.remembered(update, work.settings) for update in updates]
        work.state[PACE] = (pace / torch.tensor(kept)).unsqueeze(1)

    def weigh(self, weights: Sequence[float], updates: Sequence[Update]) -> Sequence[float]:
        """Late updates by today's pace."""
        return [weight * _lateness(update) for weight, update in zip(weights, updates, strict=True)]

    def remembered(self, sent: Payload, settings: RoundSettings) -> float:
        """α, or all where what was meant is remembered."""
        return self.codec.fidelity(sent, settings) if self.of == "sent" else 1.0

    def _forget_lost(self, work: LocalWork) -> None:
        """Take out of y what never arrived."""
        rows = zip(work.state[REMEMBERED].numpy(), work.state[PACE].flatten().tolist(), work.assignments, strict=True)
        for row, pace, one in rows:
            if pace > 0 and one.undelivered is not None and UPDATE in one.undelivered:
                one.undelivered[UPDATE].add_to(row, -1 / pace, work.start.numpy())

    def on_server(
        self, delta: Tensor, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Tensor, ServerState]:
        """Δ + ηE·h; h ← γh + Σ p û/(ηE)."""
        pace = _pace(settings)
        passed = settings.round - float(server.tensors[LAST_ROUND])
        memory = server.tensors["memory"] * fade(settings.clients) ** passed
        delta = delta + pace * memory
        for update in updates:
            kept = self.remembered(update.sent, update.settings(settings))
            part = kept * update.share * _lateness(update)
            update.delta.add_to(memory.numpy(), part / pace, server.w.numpy())
        return delta, server.having(memory=memory, **{LAST_ROUND: torch.tensor([float(settings.round)])})


def _lateness(update: Update) -> float:
    """ηE_now/ηE_then · γ^τ; 1 where nothing is remembered of the client, or nothing is late."""
    if update.start is None or update.start.settings.clients == 0:
        return 1.0
    return update.start.pace * fade(update.start.settings.clients) ** update.staleness


def _pace(settings: RoundSettings) -> float:
    """ηE, what an update is measured by, so that a memory stays true when either changes."""
    return settings.eta * settings.local_steps
