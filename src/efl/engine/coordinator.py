"""The server's loop over one round. It exists once; what lies between it and the clients is a `Transport`.

Everything the server learns from a client it decodes from bytes, and every change of the model is the decoded form
of the bytes that clients are sent for it. So server and clients cannot drift apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from efl.algorithms.base import Algorithm, Contribution, Parts, RoundSettings, ServerState
from efl.algorithms.parts.averaging import averaged_model
from efl.algorithms.parts.schedule import Schedule
from efl.algorithms.parts.weights import by_samples
from efl.engine.attendance import asked
from efl.engine.guard import Guard
from efl.engine.hand import coding_context, decoded_parts, layout_of
from efl.engine.roster import Roster
from efl.engine.transport import Exchange, Transport
from efl.errors import DivergedError, WireError
from efl.fleet import Change, Clock, Fleet, Membership, Selection
from efl.models import FlatModel
from efl.storage import checksum
from efl.wire import (
    FIRST,
    NO_MODEL,
    PERSONAL,
    BroadcastLog,
    Context,
    Courier,
    Dense,
    Field,
    Ledger,
    Message,
    Payload,
    decode,
    encode,
    kinds_of,
)

RUNAWAY_LOSS = 1e4


@dataclass(frozen=True)
class Plan:
    """What training asks of a round: cohort size, E, B, η, its schedule, whether that restarts, and the seed."""

    cohort: int
    local_steps: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    restart: bool
    seed: int


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round: by client the steps done, whose work was counted, who was refused, loss, bytes.

    Also who came and went, and where rounds take simulated time, the time at its end.
    """

    round: int
    eta: float
    steps: Mapping[int, int]
    counted: list[int]
    refused: Mapping[int, str]
    train_loss: float
    bytes: Mapping[str, Mapping[str, int]]
    changes: list[Change]
    time: float | None


@dataclass(frozen=True)
class Reply:
    """A client's reply, checked and decoded; ``recovered`` if it makes up for one that was lost."""

    steps: int
    loss: float
    parts: Parts
    recovered: bool


@dataclass(eq=False)
class Coordinator:
    """Plays rounds: asks a cohort, collects what comes back, makes the next model."""

    algorithm: Algorithm
    model: FlatModel
    fleet: Fleet
    plan: Plan
    roster: Roster
    transport: Transport
    members: Membership
    clock: Clock | None = None
    guard: Guard | None = None
    server: ServerState = field(init=False)
    buffers: Tensor = field(init=False)
    log: BroadcastLog = field(default_factory=BroadcastLog)
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.plain = Context(layout_of(self.model))
        self.context = self.plain
        self.first_checksum = checksum(self.model.w.numpy())
        self.server = self.algorithm.start(self.model.w.clone())
        self.buffers = self.model.buffers.clone()

    def play(self, round_: int) -> RoundRecord:
        """One round, from asking to the new model. Nobody answering is a normal round."""
        self.ledger.start_round()
        changes = self.members.begin(round_)
        self.roster.objective = self.members.objective(round_)
        settings = self.settings(round_)
        chosen_in = round_ - round_ % self.algorithm.exchanges  # who is asked twice is as able the second time
        cohort, seed = self.plan.cohort, self.plan.seed
        selection = asked(self.fleet, self.members, self.clock, self.roster, cohort, seed, chosen_in)
        requests = self._requests(selection, settings)
        exchange = self.transport.exchange(chosen_in, requests)
        replies, refused = self._read(exchange, requests, settings)
        changes += self.members.end(round_, selection.clients, replies)
        counted = {client: reply for client, reply in replies.items() if self.roster.objective[client]}
        contributions = self._contributions(selection, counted)
        self._note_answers(selection, replies, settings)
        self.server, step = self.algorithm.aggregate(self.server, contributions, settings)
        if step is not None:
            self._apply(step)
        self._average_buffers(counted)
        loss = self._train_loss(counted, round_)
        return RoundRecord(
            round_,
            settings.eta,
            exchange.steps,
            list(counted),
            refused,
            loss,
            {direction: dict(kinds) for direction, kinds in self.ledger.round.items()},
            changes,
            None if self.clock is None else self.clock.now,
        )

    def settings(self, round_: int) -> RoundSettings:
        """What clients are told about this round."""
        plan = self.plan
        started = int(self.members.restarted[0]) if plan.restart else 0
        eta = plan.schedule(plan.learning_rate, max(0, round_ - started))
        return RoundSettings(round_, eta, plan.local_steps, plan.batch_size, self.plain.layout)

    def _requests(self, selection: Selection, settings: RoundSettings) -> dict[int, bytes]:
        shared = self._shared_parts(settings)
        courier = Courier(self.log, self.context, lambda: encode(Dense(self.server.w.numpy()), self.plain))
        requests: dict[int, bytes] = {}
        for client in selection.clients.tolist():
            version = int(self.roster.version[client])
            delivery = courier.delivery(version)
            header = {
                "round": settings.round,
                "client": client,
                "eta": settings.eta,
                "local_steps": settings.local_steps,
                "batch_size": settings.batch_size,
                "accepted": int(self.roster.accepted[client]),
                "how": delivery.how,
                "base": delivery.base,
                "version": self.log.version,
            }
            if version == FIRST and delivery.how != "model":
                header["start"] = self.first_checksum
            parts = shared | self._personal_part(client)
            requests[client] = Message("request", header, parts, delivery.blobs).to_bytes()
            kinds = kinds_of(parts) + Counter({"update": delivery.fresh, "catch-up": len(delivery) - delivery.fresh})
            self.ledger.sent("down", len(requests[client]), kinds)
        return requests

    def _shared_parts(self, settings: RoundSettings) -> dict[str, bytes]:
        """What all clients are told alike; the field in it is what increments are coded by this round."""
        parts = self.algorithm.broadcast(self.server, settings)
        shared = {name: encode(payload, self.plain) for name, payload in parts.items()}
        self.context = coding_context(decoded_parts(shared, self.model, self.plain), self.plain)
        if self.buffers.numel():
            shared["buffers"] = encode(Dense(self.buffers.numpy()), Context.flat(len(self.buffers)))
        return shared

    def _personal_part(self, client: int) -> dict[str, bytes]:
        """What one client alone is told."""
        told = self.algorithm.personal(self.server, client)
        return {} if told is None else {PERSONAL: encode(told, self.plain)}

    def _read(
        self, exchange: Exchange, requests: Mapping[int, bytes], settings: RoundSettings
    ) -> tuple[dict[int, Reply], dict[int, str]]:
        """The valid replies in order of client, and why others were refused."""
        self.ledger.sent("up", exchange.lost_bytes, {"lost": exchange.lost_bytes})
        replies: dict[int, Reply] = {}
        refused = dict(exchange.refused)
        for client in sorted(exchange.replies):
            blob = exchange.replies[client]
            kinds: Mapping[str, int] = {}
            try:
                if client not in requests:
                    raise WireError(f"client {client} was not asked")
                reply = Message.from_bytes(blob, "reply")
                kinds = kinds_of(reply.parts)
                if reply.header.get("needs_model"):
                    self.roster.version[client] = NO_MODEL
                else:
                    replies[client] = self._checked(reply, client, settings)
            except WireError as error:
                refused[client] = str(error)
            self.ledger.sent("up", len(blob), kinds)
        return replies, refused

    def _checked(self, reply: Message, client: int, settings: RoundSettings) -> Reply:
        if reply.header.get("diverged"):
            said = f"client {client} left the finite numbers in round {settings.round}"
            raise DivergedError(said) if self.guard is None else WireError(said)
        if reply.number("client") != client or reply.number("round") != settings.round:
            raise WireError(f"client {client} answered something it was not asked")
        steps, loss = int(reply.number("steps")), float(reply.number("loss"))
        if not 1 <= steps <= settings.local_steps or not math.isfinite(loss):
            raise WireError(f"client {client} reports impossible steps or loss")
        expected = dict(self.algorithm.upload_types) | ({"buffers": Dense} if self.buffers.numel() else {})
        if set(reply.parts) != set(expected):
            raise WireError(f"client {client} sent {sorted(reply.parts)}, expected {sorted(expected)}")
        parts = decoded_parts(reply.parts, self.model, self.context)
        for name, part in parts.items():
            if not isinstance(part, expected[name]):
                raise WireError(f"client {client} sent {type(part).__name__} as {name}")
        if self.guard is not None:
            self.guard.check(client, parts, self.server.w)
        return Reply(steps, loss, parts, bool(reply.header.get("recovered")))

    def _contributions(self, selection: Selection, replies: Mapping[int, Reply]) -> list[Contribution]:
        shares, rates = self.roster.shares, self.roster.answer_rates()
        chance = dict(zip(selection.clients.tolist(), selection.probability.tolist(), strict=True))
        return [
            Contribution(
                client=client,
                size=int(self.roster.sizes[client]),
                share=float(shares[client]),
                asked=chance[client],
                answers=float(rates[client]),
                steps_done=reply.steps,
                parts=reply.parts,
            )
            for client, reply in replies.items()
        ]

    def _note_answers(self, selection: Selection, replies: Mapping[int, Reply], settings: RoundSettings) -> None:
        """A reply that takes back a lost one counts for both: its weight must not make up for the same loss again."""
        answered = np.array(list(replies), dtype=np.int64)
        self.roster.asked[selection.clients] += 1
        self.roster.answered[answered] += 1 + np.array([reply.recovered for reply in replies.values()], dtype=np.int64)
        np.minimum(self.roster.answered, self.roster.asked, out=self.roster.answered)
        self.roster.version[answered] = self.log.version
        used = answered[self.roster.objective[answered]]
        self.roster.accepted[used] = settings.round

    def _apply(self, step: Payload) -> None:
        """Change the model by what the bytes of ``step`` say, and keep the bytes for those who will ask."""
        if isinstance(step, Field):
            raise TypeError("a field does not change the model")
        finite = bool(np.isfinite(step.values).all()) and bool(torch.isfinite(self.algorithm.model(self.server)).all())
        if not finite:
            raise DivergedError("the aggregate left the finite numbers")
        blob = encode(step, self.plain)
        received = decode(blob, self.plain)
        assert not isinstance(received, Field)
        w = torch.from_numpy(received.onto(self.server.w.numpy()))
        if not bool(torch.isfinite(w).all()):
            raise DivergedError("the model left the finite numbers")
        self.server = ServerState(w, self.server.tensors)
        self.log = self.log.append(blob, 4 * self.model.n, absolute=isinstance(received, Dense))

    def _average_buffers(self, replies: Mapping[int, Reply]) -> None:
        """BatchNorm statistics and the like: the mean over those who answered, by sample count."""
        if not self.buffers.numel() or not replies:
            return
        weights = by_samples([int(self.roster.sizes[client]) for client in replies])
        payloads = [reply.parts["buffers"] for reply in replies.values()]
        self.buffers = averaged_model(self.buffers, payloads, weights)

    def _train_loss(self, replies: Mapping[int, Reply], round_: int) -> float:
        """The cohort's mean mini-batch loss, by sample count; NaN when nobody answered."""
        if not replies:
            return math.nan
        weights = by_samples([int(self.roster.sizes[client]) for client in replies])
        loss = math.fsum(weight * reply.loss for weight, reply in zip(weights, replies.values(), strict=True))
        if loss > RUNAWAY_LOSS:
            raise DivergedError(f"the training loss is {loss:.3g} in round {round_}")
        return loss
