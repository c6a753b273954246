"""Hostile clients in simulations: they train like others, and send something else in a message like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from efl.algorithms.base import Parts, RoundSettings
from efl.algorithms.components.shares import fade
from efl.algorithms.state import UPDATE
from efl.algorithms.transforms.memory import Memory
from efl.client.evaluation import EvaluateRequests, Metrics
from efl.client.host import ClientHost
from efl.fleet.attacks import Attack, Situation
from efl.rng import Purpose, stream
from efl.wire import Context, Dense, Field, Lattice, Payload, TrainReply, TrainRequest, encode
from efl.wire.parts import coding_context, decode_parts

Vector = NDArray[np.float32]
MOST = 1e30  # of what a false field says, which is to be finite
FORGETTING = 0.15  # of the mean of the models seen
REMEMBERED = ("true", "believed", "before")  # what is kept of each hostile client


class HostileHost:
    """A host some of whose clients are hostile.

    What they keep is an honest client's; those whose attack is about what an update means keep besides what the server
    believes of them.

    Args:
        host: Trains for all of them.
        hostile: The clients that are.
        attack: What they do.
        seed: The run's seed.
    """

    def __init__(self, host: ClientHost, hostile: NDArray[np.int64], attack: Attack, seed: int) -> None:
        self.host, self.hostile, self.attack, self.seed = host, frozenset(hostile.tolist()), attack, seed
        self.memory = next((one for one in host.algorithm.transforms if isinstance(one, Memory)), None)
        self.kept: dict[str, dict[int, Vector]] = {name: {} for name in REMEMBERED}
        self.renewed: dict[int, int] = {}

    def train(self, blobs: Mapping[int, bytes], steps: Mapping[int, int]) -> dict[int, bytes]:
        """The replies of all, those of hostile clients forged."""
        replies = self.host.train(blobs, steps)
        requests = {c: TrainRequest.from_bytes(blobs[c], self.host.limits) for c in sorted(replies)}
        if not requests or next(iter(requests.values())).round < self.attack.start:
            return replies
        replies = {c: blob for c, blob in replies.items() if c not in self.hostile or self._answers(requests[c])}
        if self.attack.forge is None and self.attack.field is None:
            return replies
        messages = {c: TrainReply.from_bytes(replies[c], self.host.limits) for c in sorted(replies)}
        sent = {c: reply for c, reply in messages.items() if reply.parts}
        if not self.hostile & sent.keys():
            return replies
        return replies | self._forged(sent, next(iter(requests.values())))

    def _answers(self, request: TrainRequest) -> bool:
        rng = stream(self.seed, Purpose.HOSTILE, request.round + 1, request.client)
        return self.attack.answers == 1 or rng.random() < self.attack.answers

    def _forged(self, replies: Mapping[int, TrainReply], request: TrainRequest) -> dict[int, bytes]:
        plain, settings = self.host.worker.plain, self.host.settings(request)
        buffers = len(self.host.trainer.model.buffers)
        context = coding_context(decode_parts(request.shared, plain, buffers), plain)
        parts = {c: decode_parts(reply.parts, context, buffers) for c, reply in replies.items()}
        deltas = {c: self._vector(one[UPDATE]) for c, one in parts.items()}
        honest = np.stack([deltas[c] for c in deltas if c not in self.hostile] or [np.empty(0, np.float32)])
        if not honest.size:
            honest = np.empty((0, plain.layout.n), np.float32)
        flat, forged = Context.flat(buffers), {}
        for client in sorted(self.hostile & replies.keys()):
            made = self._made(client, parts[client], deltas[client], honest, settings)
            blobs = {name: encode(part, flat if name == "buffers" else context) for name, part in made.items()}
            forged[client] = replace(replies[client], parts=blobs).to_bytes()
        return forged

    def _made(
        self, client: int, parts: Parts, own: Vector, honest: NDArray[np.float32], settings: RoundSettings
    ) -> Parts:
        attack, made = self.attack, dict(parts)
        if attack.field is not None:
            made |= {name: _false_field(part, attack) for name, part in parts.items() if isinstance(part, Field)}
        if attack.forge is None:
            return made
        rng = stream(self.seed, Purpose.HOSTILE, settings.round + 1, client)
        model = self.host.w.numpy()
        if not attack.remembers:
            at = Situation(own, honest, model, attack.strength, rng)
            return made | {UPDATE: self._encoded(attack.forge(at), parts[UPDATE], settings)}
        true, believed = self._memories(client, settings)
        at = Situation(own + true, honest, model, attack.strength, rng, self.kept["before"].get(client))
        made[UPDATE] = self._encoded(attack.forge(at) - believed, parts[UPDATE], settings)
        self._remember(client, parts[UPDATE], made[UPDATE], settings)
        return made

    def _vector(self, payload: Payload) -> Vector:
        """The update that a payload means."""
        vector = np.zeros(self.host.worker.plain.layout.n, np.float32)
        payload.add_to(vector, 1.0, self.host.w.numpy())
        return vector

    def _encoded(self, update: Vector, like: Payload, settings: RoundSettings) -> Payload:
        """An update in the form in which honest clients send theirs; on a lattice as fine as it takes."""
        if isinstance(like, Lattice):
            step = float(np.sqrt(np.square(update, dtype=np.float64).mean())) or 1.0
            return Lattice.of(settings.layout, np.rint(update / np.float32(step)).astype(np.int32), step)
        codec, rows = self.host.algorithm.codec, torch.from_numpy(update).unsqueeze(0)
        if codec.compresses("up"):
            return codec.compress(rows, "up", settings)[0]
        return Dense((self.host.w + rows[0]).numpy())

    def _memories(self, client: int, settings: RoundSettings) -> tuple[Vector, Vector]:
        """What an honest client in its place would remember, and what the server believes, as changes of the model."""
        nothing = np.zeros(settings.layout.n, np.float32)
        if self.memory is None or client not in self.renewed:
            return nothing, nothing
        faded = fade(settings.clients) ** (settings.round - self.renewed[client]) * settings.eta * settings.local_steps
        true, believed = (self.kept[name][client] * np.float32(faded) for name in ("true", "believed"))
        return true, believed

    def _remember(self, client: int, honest: Payload, sent: Payload, settings: RoundSettings) -> None:
        model, pace = self.host.w.numpy(), settings.eta * settings.local_steps
        before = self.kept["before"].get(client, model)
        self.kept["before"][client] = before + np.float32(FORGETTING) * (model - before)
        if self.memory is None:
            return
        memories = self._memories(client, settings)
        for name, payload, old in zip(("true", "believed"), (honest, sent), memories, strict=True):
            kept = self.memory.remembered(payload, settings)
            total = old / np.float32(pace)
            payload.add_to(total, kept / pace, model)
            self.kept[name][client] = total
        self.renewed[client] = settings.round

    def evaluate(self, requests: EvaluateRequests) -> Metrics:
        """What clients find of a model; nobody lies about that, for it is an observer's view."""
        return self.host.evaluate(requests)

    def start(self) -> object:
        """Start worker processes."""
        return self.host.start()

    def close(self) -> None:
        """Stop them."""
        self.host.close()

    def state_dict(self) -> dict[str, Any]:
        """What clients keep, hostile ones included."""
        kept = {
            name: {str(client): torch.from_numpy(vector.copy()) for client, vector in vectors.items()}
            for name, vectors in self.kept.items()
        }
        renewed = {str(client): round_ for client, round_ in self.renewed.items()}
        return {**self.host.state_dict(), "hostile": {**kept, "renewed": renewed}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.host.load_state_dict(state)
        hostile = state.get("hostile", {})
        for name in REMEMBERED:
            self.kept[name] = {int(client): vector.numpy() for client, vector in hostile.get(name, {}).items()}
        self.renewed = {int(client): int(round_) for client, round_ in hostile.get("renewed", {}).items()}

    def checkpointed(self) -> None:
        """The state was saved in a checkpoint."""
        self.host.checkpointed()


def _false_field(field: Field, attack: Attack) -> Field:
    """Huge Fisher values, and an anchor on the other side of the model, as far away again times ten."""
    u = np.minimum(field.fisher, np.float32(MOST / attack.strength)) * np.float32(attack.strength)
    d = np.clip(field.displacement, -MOST / 10, MOST / 10) * np.float32(-10)
    if attack.field == "dense":
        n = field.layout.n
        rng = np.random.default_rng(n)
        spread = np.full(n, u.max(initial=0.0), np.float32)
        away = rng.standard_normal(n).astype(np.float32) * np.float32(np.abs(d).max(initial=0.0))
        return Field(field.layout, None, spread, away)
    return replace(field, fisher=u, displacement=d)
