"""What a reply must be before any of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from efl.algorithms.base import Part, Parts
from efl.errors import DivergedError, WireError
from efl.server.limits import Measured, NormLimits
from efl.server.loss_limit import MAX_LOSS
from efl.server.started import StartedRound
from efl.wire import Dense, Payload, TrainReply
from efl.wire.parts import decode_parts


class ValidReply(NamedTuple):
    """A client's reply, validated and decoded; ``recovered`` if it makes up for one that was lost."""

    steps: int
    loss: float
    parts: Parts
    recovered: bool


@dataclass(frozen=True, eq=False)
class ReplyValidator:
    """Validates replies by the round in which their clients were asked.

    Attributes:
        started: That round; its model is what updates are compared with.
        parts: The parts of an upload.
        limits: Norm limits, for clients that the server does not control; None trusts them.
        max_loss: The largest training loss of such a client.
        private: Whether a client whose training diverged is left out, so that not even the run's end tells of it.
    """

    started: StartedRound
    parts: Mapping[str, Part]
    limits: NormLimits | None = None
    max_loss: float = MAX_LOSS
    private: bool = False

    @cached_property
    def _measured(self) -> tuple[Measured, Measured]:
        return Measured(self.started.w), Measured(self.started.buffers)

    @cached_property
    def _expected(self) -> dict[str, type[Payload]]:
        """The parts of a reply of this round, and of which kind each is."""
        round_ = self.started.settings.round
        expected: dict[str, type[Payload]] = {
            name: part.payload for name, part in self.parts.items() if part.comes_in(round_)
        }
        return expected | ({"buffers": Dense} if self._buffers else {})

    @cached_property
    def _buffers(self) -> int:
        return len(self.started.buffers)

    def validate(self, reply: TrainReply, client: int) -> ValidReply:
        """The reply, decoded.

        Raises:
            WireError: The reply is rejected.
            DivergedError: The training of a trusted client diverged.
        """
        try:
            return self._validated(reply, client)
        except (WireError, DivergedError):
            raise
        except Exception as error:
            if self.limits is None:
                raise
            raise WireError(f"client {client} sent what cannot be read: {error!r}") from error

    def _validated(self, reply: TrainReply, client: int) -> ValidReply:
        settings = self.started.settings
        if reply.client != client or reply.round != settings.round:
            raise WireError(f"client {client} replied for client {reply.client}, round {reply.round}")
        if reply.diverged:
            text = f"training of client {client} diverged in round {settings.round}"
            raise DivergedError(text) if self.limits is None and not self.private else WireError(text)
        if not 1 <= reply.steps <= settings.local_steps:
            raise WireError(f"client {client} reports {reply.steps} of {settings.local_steps} steps")
        if self.limits is not None and abs(reply.loss) > self.max_loss:  # else one client could end the run for all
            raise WireError(f"client {client} reports a training loss of {reply.loss:.3g}")
        parts = self._decoded(reply, client)
        if self.limits is not None:
            self.limits.check(client, parts, self.parts, *self._measured, settings)
        return ValidReply(reply.steps, reply.loss, parts, reply.recovered)

    def _decoded(self, reply: TrainReply, client: int) -> Parts:
        started, expected = self.started, self._expected
        if reply.parts.keys() != expected.keys():
            raise WireError(f"client {client} sent {sorted(reply.parts)}, expected {sorted(expected)}")
        parts = decode_parts(reply.parts, started.context, self._buffers)
        for name, part in parts.items():
            if not isinstance(part, expected[name]):
                raise WireError(f"client {client} sent {type(part).__name__} as {name}")
            fits = self.parts[name].fits if name in self.parts else None
            if fits is not None and not fits(part, started.settings):
                raise WireError(f"client {client} sent another round's {name}")
        return parts
