"""What a reply must be before anything of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from efl.algorithms.base import Part, Parts, RoundSettings, ServerState
from efl.client.worker import decoded_parts
from efl.errors import DivergedError, WireError
from efl.models import FlatModel
from efl.server.limits import Guard
from efl.wire import Context, Dense, Message, Payload

RUNAWAY_LOSS = 1e4  # a mean training loss that is larger has diverged


@dataclass(frozen=True)
class Reply:
    """A client's reply, checked and decoded; ``recovered`` if it makes up for one that was lost."""

    steps: int
    loss: float
    parts: Parts
    recovered: bool


@dataclass(frozen=True, eq=False)
class Expected:
    """The replies that a round may bring; ``guard`` is there if they come from machines that nobody here controls."""

    settings: RoundSettings
    parts: Mapping[str, Part]
    model: FlatModel
    context: Context
    server: ServerState
    buffers: Tensor
    guard: Guard | None

    def checked(self, reply: Message, client: int) -> Reply:
        """The reply, decoded; `WireError` if it is refused."""
        try:
            return self._checked(reply, client)
        except (WireError, DivergedError):
            raise
        except Exception as error:
            if self.guard is None:
                raise
            raise WireError(f"client {client} sent what cannot be read: {error!r}") from error

    def _checked(self, reply: Message, client: int) -> Reply:
        settings = self.settings
        if reply.header.get("diverged"):
            said = f"client {client} left the finite numbers in round {settings.round}"
            raise DivergedError(said) if self.guard is None else WireError(said)
        if reply.number("client") != client or reply.number("round") != settings.round:
            raise WireError(f"client {client} answered something it was not asked")
        steps, loss = int(reply.number("steps")), float(reply.number("loss"))
        if not 1 <= steps <= settings.local_steps:
            raise WireError(f"client {client} reports impossible steps")
        if self.guard is not None and abs(loss) > RUNAWAY_LOSS:  # else one client could end the run for all
            raise WireError(f"client {client} reports a training loss of {loss:.3g}")
        parts = self._decoded(reply, client)
        if self.guard is not None:
            self.guard.check(client, parts, self.server.w, self.buffers, settings)
        return Reply(steps, loss, parts, bool(reply.header.get("recovered")))

    def _decoded(self, reply: Message, client: int) -> Parts:
        expected: dict[str, type[Payload]] = {name: part.payload for name, part in self.parts.items()}
        expected |= {"buffers": Dense} if self.buffers.numel() else {}
        if set(reply.parts) != set(expected):
            raise WireError(f"client {client} sent {sorted(reply.parts)}, expected {sorted(expected)}")
        parts = decoded_parts(reply.parts, self.model, self.context)
        for name, part in parts.items():
            if not isinstance(part, expected[name]):
                raise WireError(f"client {client} sent {type(part).__name__} as {name}")
        return parts
