"""The transport to clients behind Flower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efl.client.evaluation import EvaluateRequests
from efl.errors import WireError
from efl.fleet.clock import Until
from efl.flower.envelope import Envelope
from efl.flower.mailbox import Mailbox
from efl.training.tasks import Objective
from efl.transport.base import Mask, Replies, Requests
from efl.wire import Context, EvaluateReply, Limits

Sums = NDArray[np.float64]
UNKNOWN = (np.nan, np.nan)


class FlowerTransport:
    """Sends requests through Flower and collects what comes back until the round ends.

    Args:
        mailbox: Sends and receives.
        context: What models are coded by.
        work_seconds: How long a client may train.
        objective: What clients are to report.
    """

    def __init__(self, mailbox: Mailbox, context: Context, work_seconds: float, objective: Objective) -> None:
        self.mailbox, self.context, self.work_seconds, self.objective = mailbox, context, work_seconds, objective
        self._requests: Requests | None = None
        self._at_work: set[int] = set()  # clients asked in earlier rounds, whose replies had not come by their end

    now = None  # time is real

    def available(self, members: Mask) -> Mask:
        """All members: those that are offline do not reply."""
        return members

    def send(self, requests: Requests) -> None:
        """Send training or evaluation requests."""
        self._requests = requests
        if isinstance(requests, EvaluateRequests):
            free = sorted(set(self.mailbox.reachable()) - self.mailbox.at_work)  # others would answer after their work
            online = np.intersect1d(requests.clients, np.array(free, dtype=np.int64))
            encoded = requests.only(online).encoded(self.context)
            self.mailbox.request("evaluate", {client: {"blob": r.to_bytes()} for client, r in encoded.items()})
        else:
            envelopes = {c: {"blob": blob, "seconds": self.work_seconds} for c, blob in requests.blobs.items()}
            self.mailbox.request("train", envelopes)

    def collect(self, until: Until) -> Replies:
        """The replies until the round ends; who did not reply did no steps, as far as the server knows."""
        assert self._requests is not None
        requests, self._requests = self._requests, None
        envelopes, rejected = self.mailbox.collect(until)
        if isinstance(requests, EvaluateRequests):
            return self._evaluated(requests, envelopes, rejected)
        asked, self._at_work = self._at_work | set(requests.blobs), self.mailbox.at_work
        steps, blobs = dict.fromkeys(sorted(asked - self._at_work), 0), dict[int, bytes]()
        for client, envelope in envelopes.items():
            done, blob = envelope.get("steps"), envelope.get("blob")
            steps[client] = done if isinstance(done, int) and done > 0 else 0
            if isinstance(blob, bytes):
                blobs[client] = blob
        lost, self.mailbox.lost_bytes = self.mailbox.lost_bytes, 0
        return Replies(blobs, steps, lost_bytes=lost, rejected=rejected)

    def _evaluated(
        self, requests: EvaluateRequests, envelopes: Mapping[int, Envelope], rejected: dict[int, str]
    ) -> Replies:
        found: dict[int, Mapping[str, tuple[float, float]]] = {}
        for client, envelope in envelopes.items():
            try:
                found[client] = self._metrics(envelope.get("blob"), requests.round, client)
            except WireError as error:
                rejected[client] = str(error)
        for client, why in sorted(rejected.items()):
            self.mailbox.log(f"rejected: evaluation by client {client}: {why}")
        metrics: dict[str, tuple[Sums, Sums]] = {}
        for name in self.objective.metrics:
            pairs = [found[client][name] if client in found else UNKNOWN for client in requests.clients.tolist()]
            sums, weights = np.array(pairs).reshape(-1, 2).T
            metrics[name] = sums, weights
        return Replies(metrics=metrics, rejected=rejected)

    def _metrics(self, blob: object, round_: int, client: int) -> Mapping[str, tuple[float, float]]:
        """The sums and weights in an encoded `EvaluateReply`; those of shares are checked to be some."""
        if not isinstance(blob, bytes):
            raise WireError("an evaluation without a reply")
        reply = EvaluateReply.from_bytes(blob, Limits())
        if (reply.round, reply.client) != (round_, client):
            raise WireError(f"it replied for client {reply.client}, round {reply.round}")
        for name, metric in self.objective.metrics.items():
            total, weight = reply.metrics.get(name, (0.0, -1.0))
            needed = name == self.objective.merit
            if weight < 0 or (needed and not weight) or (metric.share and not 0 <= total <= weight):
                raise WireError(f"it reports no valid {name}")
        return reply.metrics

    def start(self) -> None:
        """There is nothing to start."""

    def close(self) -> None:
        """There is nothing to stop: the grid belongs to Flower."""

    def state_dict(self) -> dict[str, Any]:
        """Who is at work; what clients keep, they keep themselves."""
        return {"at_work": sorted(self._at_work)} if self._at_work else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned: what was on its way to a server that was stopped will not come."""
        self._at_work = set(state.get("at_work", []))

    def checkpointed(self) -> None:
        """Nothing to do."""
