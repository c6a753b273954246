"""One round, from sampling a cohort to the next model; between server and clients is a `Transport`.

A round ends when `RoundEnd` says so. Clients whose replies have not come by then stay at work, and a later round uses
these; where rounds wait for everybody, nobody stays.

Everything the server learns from a client it decodes from bytes, and every change of the model is the decoded form
of the bytes that clients are sent for it. So server and clients cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import Any

import numpy as np
from torch import Tensor

from efl.algorithms.base import Algorithm, RoundSettings, ServerState
from efl.algorithms.components.shares import effective_cohort, remembered_clients
from efl.algorithms.pipeline import initial_state, release_of, upload_parts
from efl.errors import DivergedError, UserError, WireError
from efl.models import FlatModel
from efl.rng import Purpose, stream
from efl.server.aggregation import Aggregate, aggregate, is_finite, mean_loss, updates_of
from efl.server.byte_control import ByteControl
from efl.server.client_table import ClientTable
from efl.server.limits import NormLimits
from efl.server.loss_limit import LossLimit
from efl.server.membership import Membership
from efl.server.records import RoundRecord, TrainingSettings
from efl.server.replies import ReplyValidator, ValidReply
from efl.server.requests import RequestEncoder, Shared
from efl.server.round_end import RoundEnd
from efl.server.sampling import Cohort, Sampler
from efl.server.started import StartedRound, at_work_of, state_of
from efl.storage import checksum
from efl.transport.base import Replies, TrainRequests, Transport
from efl.wire import NO_MODEL, BroadcastLog, Context, Ledger, Limits, TrainReply, kinds_of

MAX_REJECTED_ROUNDS = 3  # in a row without a valid reply, after which it must be the server's state


@dataclass(eq=False)
class Coordinator:
    """Runs rounds: samples a cohort, sends requests, collects replies, makes the next model.

    Attributes:
        algorithm: The algorithm.
        model: The network; training starts from its weights.
        training: What all rounds have in common.
        table: What is known of each client.
        sampler: Draws the cohorts.
        members: Who takes part in which round.
        transport: The way to the clients.
        round_end: When a round ends.
        limits: Norm limits, for clients that the server does not control; None trusts them.
        server: The algorithm's state, and the model's weights.
        buffers: The model's float buffers.
        log: The broadcasts that clients may have missed.
        ledger: Bytes sent so far.
        at_work: Clients whose replies may still come, and the rounds in which they were asked.
    """

    algorithm: Algorithm
    model: FlatModel
    training: TrainingSettings
    table: ClientTable
    sampler: Sampler
    members: Membership
    transport: Transport
    round_end: RoundEnd = field(default_factory=RoundEnd)
    limits: NormLimits | None = None
    server: ServerState = field(init=False)
    buffers: Tensor = field(init=False)
    log: BroadcastLog = field(default_factory=BroadcastLog)
    ledger: Ledger = field(default_factory=Ledger)
    at_work: dict[int, StartedRound] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plain = self.context = Context(self.model.layout)
        self.parts = upload_parts(self.algorithm)
        returning = len(self.table.sizes) / self.training.replies
        self.byte_control = ByteControl.of(self.algorithm.budget, self.model.n, self.training.rounds, returning)
        self.kinds = {name: part.kind for name, part in self.parts.items()}
        self.message_limits = Limits.of(self.plain.layout, len(self.model.buffers), self.parts)
        self.loss_limit = LossLimit(self.training.loss_in_nats)
        self.private = release_of(self.algorithm) is not None  # nothing a client reports may act on others
        self.rejected_rounds = 0  # in a row in which replies were rejected, and none could be used
        self.server = initial_state(self.algorithm, self.model.w.clone())
        self.first_checksum = checksum(self.server.w.numpy())
        self.buffers = self.model.buffers.clone()

    def run_round(self, round_: int) -> RoundRecord:
        """One round, from the cohort to the new model. A round without replies is a normal round."""
        self.ledger.start_round()
        changes = self.members.begin(round_)
        self.table.objective = self.members.objective(round_)
        settings = self.settings(round_)
        sampled_in = round_ - round_ % self.algorithm.requests_per_update  # the same clients, as able the second time
        cohort = self._sample(sampled_in)
        requests = self._requests(cohort, settings)
        self.transport.send(TrainRequests(sampled_in, requests, self.round_end.deadline))
        replies = self.transport.collect(self.round_end)
        valid, rejected = self._validated(replies)
        begun = {client: self.at_work.pop(client) for client in sorted(replies.steps)}
        changes += self.members.end(round_, np.array(list(begun), dtype=np.int64), valid)
        counted = {client: reply for client, reply in valid.items() if self.table.objective[client]}
        why, trust = self._aggregate(counted, begun, settings)
        if why is not None:
            rejected |= dict.fromkeys(valid, why)
            valid, counted = {}, {}
        self._note_replies(begun, valid)
        self.table.note_standing(rejected.keys() & replies.blobs.keys(), trust)
        reset = self._reset_after_rejections(bool(valid), rejected=not rejected.keys().isdisjoint(replies.blobs))
        loss = mean_loss(counted, self.table, round_, self._most_loss)
        if not self.private:
            self.loss_limit.note([reply.loss for reply in counted.values()])
        self._control_bytes(len(requests), replies, settings)
        sent = self.ledger.round_dict()
        now, stale = self.transport.now, [begun[client].staleness(settings) for client in counted]
        steps, doubtful = replies.steps, {client: part for client, part in trust.items() if part < 1}
        late = None if self.training.buffer is None or not stale else fmean(stale)
        return RoundRecord(
            round_, settings.eta, steps, list(counted), rejected, loss, sent, changes, now, reset, doubtful, late
        )

    def settings(self, round_: int) -> RoundSettings:
        """What server and clients agree on for a round."""
        training = self.training
        started = int(self.members.restarted[0]) if training.restart and not self.private else 0
        eta = training.schedule(training.learning_rate, max(0, round_ - started))
        shares = np.full(len(self.table.sizes), 1 / len(self.table.sizes)) if self.private else self.table.shares
        clients = remembered_clients(shares, training.replies)
        coarseness, down = self.byte_control.coarseness(effective_cohort(shares, training.replies))
        steps, batch, layout = training.local_steps, training.batch_size, self.plain.layout
        own = (training.cohort, training.seed, down)
        return RoundSettings(round_, eta, steps, batch, layout, clients, coarseness, training.optimiser, *own)

    @property
    def _most_loss(self) -> float:
        """The largest loss that is believed; with privacy others' losses must not say."""
        return inf if self.private else self.loss_limit.most

    def state_dict(self) -> dict[str, Any]:
        """Everything that rounds change, but for what the transport keeps."""
        return {
            "w": self.server.w,
            "tensors": dict(self.server.tensors),
            "buffers": self.buffers,
            "table": self.table.state_dict(),
            "members": self.members.state_dict(),
            "log": self.log.state_dict(),
            "ledger": self.ledger.state_dict(),
            "rejected_rounds": self.rejected_rounds,
            "byte_control": self.byte_control.state_dict(),
            "first_loss": self.loss_limit.first,
            "at_work": state_of(self.at_work),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; `UserError` if it was with another model or other clients."""
        if len(state["w"]) != self.model.n:
            raise UserError(
                f"it holds a model of {len(state['w'])} parameters, but the one at hand has {self.model.n}; "
                "pass the model that the run was started with"
            )
        if (before := len(state["table"]["requests"])) != len(self.table.requests):
            raise UserError(
                f"it has {before} clients, but the federation at hand has {len(self.table.requests)}; "
                "pass the one that the run was started with"
            )
        self.server = ServerState(state["w"], dict(state["tensors"]))
        self.buffers = state["buffers"]
        self.table.load_state_dict(state["table"])
        self.members.load_state_dict(state["members"])
        self.log = BroadcastLog.from_state_dict(state["log"])
        self.ledger.load_state_dict(state["ledger"])
        self.rejected_rounds = int(state["rejected_rounds"])
        self.byte_control.load_state_dict(state.get("byte_control", {}))
        self.loss_limit.first = state.get("first_loss")
        self.at_work = at_work_of(state.get("at_work", {}), self.settings(0), self.plain)

    def _sample(self, round_: int) -> Cohort:
        """The cohort, from idle members (or those that can be reached), and abandoned clients due for another probe."""
        members, idle = self.members.present(round_), np.ones(len(self.table.sizes), dtype=np.bool_)
        idle[list(self.at_work)] = False
        reachable = self.transport.available(members & idle)
        self.table.rounds += members & idle
        self.table.busy += members & ~idle
        self.table.available += reachable
        candidates = reachable if self.sampler.needs_reachable else members & idle
        rng = stream(self.training.seed, Purpose.SELECTION, round_)
        cohort = self.sampler.sample(self.table, candidates, max(0, self.training.cohort - len(self.at_work)), rng)
        again = self.members.asked_again(round_)
        return cohort.joined_by(again[idle[again]])

    def _requests(self, cohort: Cohort, settings: RoundSettings) -> dict[int, bytes]:
        shared = Shared.of(self.algorithm, self.server, self.buffers, settings, self.plain)
        self.context = shared.context
        encoder = RequestEncoder(
            self.algorithm, self.server, settings, shared, self.log, self.plain, self.first_checksum
        )
        chances = dict(zip(cohort.clients.tolist(), cohort.probability.tolist(), strict=True))
        model = (self.log.version, self.server.w, self.buffers)
        started = StartedRound(settings, *model, shared.context, shared.coded_by, chances)
        self.at_work |= dict.fromkeys(chances, started)
        requests: dict[int, bytes] = {}
        for client, blob, kinds in encoder.encoded(cohort.clients.tolist(), self.table, self.kinds):
            requests[client] = blob
            self.ledger.sent("down", len(blob), kinds)
        return requests

    def _validated(self, replies: Replies) -> tuple[dict[int, ValidReply], dict[int, str]]:
        """The valid replies in order of client, and why others were rejected."""
        self.ledger.sent("up", replies.lost_bytes, {"lost": replies.lost_bytes})
        rounds = {one.settings.round: one for one in self.at_work.values()}
        known = (self.parts, self.limits, self._most_loss, self.private)
        validators = {number: ReplyValidator(one, *known) for number, one in rounds.items()}
        valid: dict[int, ValidReply] = {}
        rejected = dict(replies.rejected)
        for client in sorted(replies.blobs):
            blob = replies.blobs[client]
            kinds: Mapping[str, int] = {}
            try:
                if client not in self.at_work:
                    raise WireError(f"client {client} was not sampled in this round")
                reply = TrainReply.from_bytes(blob, self.message_limits)
                kinds = kinds_of(reply.parts, self.kinds)
                if reply.needs_model:
                    self.table.version[client] = NO_MODEL
                else:
                    started = self.at_work[client].settings.round
                    valid[client] = validators[started].validate(reply, client)
            except WireError as error:
                rejected[client] = str(error)
            self.ledger.sent("up", len(blob), kinds)
        losses = {} if self.limits is None or self.private else {client: reply.loss for client, reply in valid.items()}
        for client in self.loss_limit.beyond_others(losses):
            rejected[client] = f"client {client} reports a training loss of {valid.pop(client).loss:.3g}"
        return valid, rejected

    def _aggregate(
        self, replies: Mapping[int, ValidReply], begun: Mapping[int, StartedRound], settings: RoundSettings
    ) -> tuple[str | None, Mapping[int, float]]:
        """Make the next model; with limits, why all stays as it was if that is not finite. How far updates counted."""
        updates = updates_of(replies, begun, self.table, settings, self.server.w)
        try:
            result = aggregate(self.algorithm, self.server, self.buffers, updates, settings, self.plain)
            if self.limits is not None and not is_finite(result):
                raise DivergedError("the aggregate is not finite")
        except DivergedError as error:
            if self.limits is None:
                raise
            return str(error), {}
        self._commit(result)
        return None, result.trust

    def _commit(self, result: Aggregate) -> None:
        self.server, self.buffers = result.server, result.buffers
        if result.change is not None:
            self.log = self.log.append(result.change, 4 * self.model.n, absolute=result.absolute)

    def _note_replies(self, begun: Mapping[int, StartedRound], replies: Mapping[int, ValidReply]) -> None:
        """A reply that recovers a lost one counts for both: its weight must not make up for the same loss again."""
        table = self.table
        table.requests[list(begun)] += 1
        for client, reply in replies.items():
            started = begun[client]
            table.replies[client] = min(table.replies[client] + 1 + reply.recovered, table.requests[client])
            table.version[client] = started.version
            if table.objective[client]:
                table.accepted[client] = started.settings.round

    def _control_bytes(self, requests: int, replies: Replies, settings: RoundSettings) -> None:
        complete = sum(steps >= settings.local_steps for steps in replies.steps.values())
        clients = len(self.table.sizes)
        self.byte_control.note(self.ledger.round, 4 * self.model.n, requests, complete, clients, settings.round)

    def _reset_after_rejections(self, used: bool, *, rejected: bool) -> bool:
        """With limits, reset all but the weights after some rounds in which every reply was rejected.

        What an algorithm broadcasts besides the model comes from other clients, and one of them may have lied within
        all limits. Then everybody else is rejected, nothing changes, and so it would go on.
        """
        if self.limits is None or used or not rejected or self.private:
            self.rejected_rounds = 0 if used else self.rejected_rounds
            return False
        self.rejected_rounds = (self.rejected_rounds + 1) % MAX_REJECTED_ROUNDS
        if self.rejected_rounds == 0:
            self.server = ServerState(self.server.w, initial_state(self.algorithm, self.server.w.clone()).tensors)
        return self.rejected_rounds == 0
