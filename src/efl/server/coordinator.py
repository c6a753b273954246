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
from torch import Tensor

from efl.algorithms.base import Algorithm, RoundSettings, ServerState, Update
from efl.algorithms.components.reduction import averaged_model
from efl.algorithms.components.weights import by_samples
from efl.algorithms.pipeline import aggregate, initial_state, upload_parts
from efl.client.worker import coding_context, decoded_parts
from efl.errors import DivergedError, WireError
from efl.fleet import Clock
from efl.models import FlatModel
from efl.rng import Purpose, stream
from efl.server.client_table import ClientTable
from efl.server.limits import Guard, all_finite, is_finite
from efl.server.membership import Membership
from efl.server.records import Plan, RoundRecord
from efl.server.replies import RUNAWAY_LOSS, Expected, Reply
from efl.server.sampling import Cohort, Sampler
from efl.storage import checksum
from efl.transport.base import Exchange, Transport
from efl.wire import (
    FIRST,
    NO_MODEL,
    PERSONAL,
    BroadcastLog,
    CatchUp,
    Context,
    Dense,
    Field,
    Ledger,
    Message,
    Payload,
    encode,
    kinds_of,
)

VAIN_ROUNDS = 3  # rounds in a row whose replies are all refused, after which it must be the server's own doing


@dataclass(eq=False)
class Coordinator:
    """Plays rounds: asks a cohort, collects what comes back, makes the next model."""

    algorithm: Algorithm
    model: FlatModel
    sampler: Sampler
    plan: Plan
    table: ClientTable
    transport: Transport
    members: Membership
    clock: Clock | None = None
    guard: Guard | None = None
    server: ServerState = field(init=False)
    buffers: Tensor = field(init=False)
    log: BroadcastLog = field(default_factory=BroadcastLog)
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.plain = Context(self.model.layout)
        self.context = self.plain
        self.in_vain = 0  # rounds in a row in which replies were refused, and none could be used
        self.first_checksum = checksum(self.model.w.numpy())
        self.server = initial_state(self.algorithm, self.model.w.clone())
        self.buffers = self.model.buffers.clone()

    def play(self, round_: int) -> RoundRecord:
        """One round, from asking to the new model. Nobody answering is a normal round."""
        self.ledger.start_round()
        changes = self.members.begin(round_)
        self.table.objective = self.members.objective(round_)
        settings = self.settings(round_)
        chosen_in = round_ - round_ % self.algorithm.requests_per_update
        selection = self._sample(chosen_in)
        requests = self._requests(selection, settings)
        exchange = self.transport.exchange(chosen_in, requests)
        replies, refused = self._read(exchange, requests, settings)
        changes += self.members.end(round_, selection.clients, replies)
        counted = {client: reply for client, reply in replies.items() if self.table.objective[client]}
        contributions = self._contributions(selection, counted)
        version = self.log.version  # what those who answered have
        if (why := self._advance(contributions, counted, settings)) is not None:
            refused |= dict.fromkeys(replies, why)
            replies, counted = {}, {}
        self._note_answers(selection, replies, settings, version)
        forgot = self._forgets(bool(replies), refused=not refused.keys().isdisjoint(exchange.replies))
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
            forgot,
        )

    def _sample(self, round_: int) -> Cohort:
        """The cohort, from the members (or those that can be reached), and abandoned clients due for another probe."""
        members, reachable = self.members.present(round_), None
        self.table.rounds += members
        if self.clock is not None:
            reachable = self.clock.available(members)
            self.table.available += reachable
        candidates = reachable if reachable is not None and self.sampler.needs_reachable else members
        rng = stream(self.plan.seed, Purpose.SELECTION, round_)
        cohort = self.sampler.sample(self.table, candidates, self.plan.cohort, rng)
        return cohort.joined_by(self.members.asked_again(round_))

    def settings(self, round_: int) -> RoundSettings:
        """What clients are told about this round."""
        plan = self.plan
        started = int(self.members.restarted[0]) if plan.restart else 0
        eta = plan.schedule(plan.learning_rate, max(0, round_ - started))
        return RoundSettings(round_, eta, plan.local_steps, plan.batch_size, self.plain.layout)

    def _requests(self, selection: Cohort, settings: RoundSettings) -> dict[int, bytes]:
        shared = self._shared_parts(settings)
        catch_up = CatchUp(self.log, self.context, lambda: encode(Dense(self.server.w.numpy()), self.plain))
        requests: dict[int, bytes] = {}
        for client in selection.clients.tolist():
            version = int(self.table.version[client])
            update = catch_up.update(version)
            header = {
                "round": settings.round,
                "client": client,
                "eta": settings.eta,
                "local_steps": settings.local_steps,
                "batch_size": settings.batch_size,
                "accepted": int(self.table.accepted[client]),
                "how": update.how,
                "base": update.base,
                "version": self.log.version,
            }
            if version == FIRST and update.how != "model":
                header["start"] = self.first_checksum
            parts = shared | self._personal_part(client)
            requests[client] = Message("request", header, parts, update.blobs).to_bytes()
            current = update.current_bytes
            kinds = kinds_of(parts) + Counter({"update": current, "catch-up": len(update) - current})
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
        told = self.algorithm.broadcast_to(self.server, client)
        return {} if told is None else {PERSONAL: encode(told, self.plain)}

    def _read(
        self, exchange: Exchange, requests: Mapping[int, bytes], settings: RoundSettings
    ) -> tuple[dict[int, Reply], dict[int, str]]:
        """The valid replies in order of client, and why others were refused."""
        self.ledger.sent("up", exchange.lost_bytes, {"lost": exchange.lost_bytes})
        expected = Expected(
            settings, upload_parts(self.algorithm), self.model, self.context, self.server, self.buffers, self.guard
        )
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
                    self.table.version[client] = NO_MODEL
                else:
                    replies[client] = expected.checked(reply, client)
            except WireError as error:
                refused[client] = str(error)
            self.ledger.sent("up", len(blob), kinds)
        return replies, refused

    def _contributions(self, selection: Cohort, replies: Mapping[int, Reply]) -> list[Update]:
        shares, rates = self.table.shares, self.table.response_rates()
        chance = dict(zip(selection.clients.tolist(), selection.probability.tolist(), strict=True))
        return [
            Update(
                client=client,
                samples=int(self.table.sizes[client]),
                share=float(shares[client]),
                sampling_probability=chance[client],
                response_rate=float(rates[client]),
                steps=reply.steps,
                parts=reply.parts,
            )
            for client, reply in replies.items()
        ]

    def _note_answers(
        self, selection: Cohort, replies: Mapping[int, Reply], settings: RoundSettings, version: int
    ) -> None:
        """A reply that takes back a lost one counts for both: its weight must not make up for the same loss again."""
        answered = np.array(list(replies), dtype=np.int64)
        self.table.requests[selection.clients] += 1
        self.table.replies[answered] += 1 + np.array([reply.recovered for reply in replies.values()], dtype=np.int64)
        np.minimum(self.table.replies, self.table.requests, out=self.table.replies)
        self.table.version[answered] = version
        used = answered[self.table.objective[answered]]
        self.table.accepted[used] = settings.round

    def _advance(
        self, contributions: list[Update], counted: Mapping[int, Reply], settings: RoundSettings
    ) -> str | None:
        """The next model, and what else is kept; with a guard, why everything stays as it was if that is not finite."""
        before = self.server, self.buffers, self.log
        try:
            self.server, payload = aggregate(self.algorithm, self.server, contributions, settings)
            if payload is not None:
                self._publish(payload)
            self._average_buffers(counted)
            if self.guard is not None and not is_finite(self.server, self.buffers):
                raise DivergedError("the aggregate left the finite numbers")
        except DivergedError as error:
            if self.guard is None:
                raise
            self.server, self.buffers, self.log = before
            return str(error)
        return None

    def _forgets(self, used: bool, *, refused: bool) -> bool:
        """Whether, with a guard, the server forgets all but the model: clients cannot work with what they are told.

        What an algorithm tells them besides the model comes from other clients, and one of them may have lied within
        all bounds. Then everybody else is refused, nothing changes, and so it would be for ever.
        """
        if self.guard is None or used or not refused:
            self.in_vain = 0 if used else self.in_vain
            return False
        self.in_vain = (self.in_vain + 1) % VAIN_ROUNDS
        if self.in_vain == 0:
            self.server = ServerState(self.server.w, initial_state(self.algorithm, self.server.w.clone()).tensors)
        return self.in_vain == 0

    def _publish(self, payload: Payload) -> None:
        """Keep the bytes by which the model changed for those who will need them."""
        if isinstance(payload, Field):
            raise TypeError("a field does not change the model")
        if not all_finite(payload.values, self.algorithm.evaluated_model(self.server).numpy()):
            raise DivergedError("the aggregate left the finite numbers")
        if not all_finite(self.server.w.numpy()):
            raise DivergedError("the model left the finite numbers")
        blob = encode(payload, self.plain)
        self.log = self.log.append(blob, 4 * self.model.n, absolute=isinstance(payload, Dense))

    def _average_buffers(self, replies: Mapping[int, Reply]) -> None:
        """BatchNorm statistics and the like: the mean over those who answered, by sample count."""
        if not self.buffers.numel() or not replies:
            return
        weights = by_samples([int(self.table.sizes[client]) for client in replies])
        payloads = [reply.parts["buffers"] for reply in replies.values()]
        self.buffers = averaged_model(self.buffers, [part for part in payloads if isinstance(part, Dense)], weights)

    def _train_loss(self, replies: Mapping[int, Reply], round_: int) -> float:
        """The cohort's mean mini-batch loss, by sample count; NaN when nobody answered."""
        if not replies:
            return math.nan
        weights = by_samples([int(self.table.sizes[client]) for client in replies])
        loss = math.fsum(weight * reply.loss for weight, reply in zip(weights, replies.values(), strict=True))
        if loss > RUNAWAY_LOSS:
            raise DivergedError(f"the training loss is {loss:.3g} in round {round_}")
        return loss
