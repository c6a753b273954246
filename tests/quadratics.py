"""Algorithms played on quadratics, f_k(w) = ½ Σ a_k (w − b_k)², with every number in sight.

`Quadratics` stands in for a network and its data; a client's mini-batch is its number. `Play` is the engine without
networks, workers and files: every client works in every round if not absent, and what is sent goes through its bytes.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from efl.algorithms.base import Contribution, LocalWork, RoundSettings
from efl.wire import Context, Layout, decode, encode


class Quadratics:
    buffers, device = torch.zeros(0), torch.device("cpu")

    def __init__(self, a, b):
        self.a, self.b = torch.tensor(a), torch.tensor(b)
        self.clients, self.n = self.a.shape

    def rows(self, w, count, buffers=None, *, batched=False):
        return QuadraticRows(self, w.expand(count, -1).clone())

    def losses(self, w):
        """f_k at w (n,), or at a model for each client (N, n)."""
        return (self.a * (w - self.b).square()).sum(1) / 2

    @property
    def optimum(self):
        """Of the mean of f_k."""
        return (self.a * self.b).sum(0) / self.a.sum(0)


class QuadraticRows:
    batched = False

    def __init__(self, model, w):
        self.model, self.W, self.G = model, w, torch.zeros_like(w)

    def gradient(self, active, x, y):
        a, b = (matrix[x[:active, 0]] for matrix in (self.model.a, self.model.b))
        self.G[:active] = a * (self.W[:active] - b)
        return (a * (self.W[:active] - b).square()).sum(1) / 2

    def descend(self, active, x, y, eta, squares=None):
        losses = self.gradient(active, x, y)
        self.W[:active] -= eta * self.G[:active]
        if squares is not None:
            squares[:active] += self.G[:active] ** 2
        return losses


@dataclass
class Play:
    algorithm: object
    problem: Quadratics
    eta: float
    local_steps: int
    rounds: int = 0
    kept: dict = field(default_factory=dict)  # client → its rows by name
    last: dict = field(default_factory=dict)  # client → the round of its last upload, and what it remembers of that
    lost: set = field(default_factory=set)  # clients whose last upload never arrived
    models: dict = field(default_factory=dict)  # client → where its local work ended
    own: dict = field(default_factory=dict)  # client → the model it uses
    sent: dict = field(default_factory=dict)  # client → part → values

    def __post_init__(self):
        self.context = Context(Layout.flat(self.problem.n))
        self.server = self.algorithm.start(torch.zeros(self.problem.n))
        self.w_before = None

    @property
    def w(self):
        return self.algorithm.model(self.server).tolist()

    def state(self, name):
        return [self.kept[client][name].tolist() for client in sorted(self.kept)]

    def through_bytes(self, payload):
        return None if payload is None else decode(encode(payload, self.context), self.context)

    def play(self, rounds=1, steps=None, lost=(), absent=()):
        """Rounds in which client k does ``steps[k]`` steps (all of them by default) and some replies are lost."""
        present = [client for client in range(self.problem.clients) if client not in absent]
        for _ in range(rounds):
            self._round(present, [self.local_steps] * self.problem.clients if steps is None else steps, set(lost))
        return self

    def _round(self, present, steps, lost):
        self.w_before = self.w
        settings = RoundSettings(self.rounds, self.eta, self.local_steps, 1, self.context.layout)
        clients = sorted(present, key=lambda client: -steps[client])
        work = self._work(clients, [steps[client] for client in clients], settings)
        uploads = self.algorithm.local_update(work)
        contributions = []
        for row, client in enumerate(clients):
            parts = {name: self.through_bytes(part) for name, part in uploads[row].items()}
            self.kept[client] = {name: rows[row].clone() for name, rows in work.state.items()}
            self.last[client] = self.rounds, {name: parts[name] for name in self.algorithm.remembers}
            self.models[client], self.own[client] = work.W[row].tolist(), work.own[row].clone()
            self.sent[client] = {name: part.values.tolist() for name, part in parts.items() if hasattr(part, "values")}
            share = 1 / self.problem.clients
            if client not in lost:
                contributions.append(Contribution(client, 1, share, 1.0, 1.0, steps[client], parts))
        contributions.sort(key=lambda contribution: contribution.client)
        self.lost = self.lost - set(clients) | lost
        self.server, step = self.algorithm.aggregate(self.server, contributions, settings)
        if step is not None:
            w = torch.from_numpy(self.through_bytes(step).onto(self.server.w.numpy()))
            self.server = type(self.server)(w, self.server.tensors)
        self.rounds += 1

    def _work(self, clients, steps, settings):
        problem, ids = self.problem, torch.tensor(clients)[:, None]
        lengths = self.algorithm.client_state(problem.n)
        nothing = {name: torch.zeros(length) for name, length in lengths.items()}
        told = self.algorithm.broadcast(self.server, settings)
        return LocalWork(
            rows=problem.rows(self.server.w, len(clients)),
            start=self.server.w,
            settings=settings,
            steps=np.array(steps),
            state={name: torch.stack([self.kept.get(c, nothing)[name] for c in clients]) for name in lengths},
            lost=[self.last[c][1] if c in self.lost else None for c in clients],
            shared={name: self.through_bytes(part) for name, part in told.items()},
            batch=lambda step, active: (ids[:active], ids[:active]),
            samples=lambda limit: (ids, ids, torch.ones(len(clients), 1), clients),
            last=np.array([self.last.get(c, (-1,))[0] for c in clients]),
            personal=[self.through_bytes(self.algorithm.personal(self.server, c)) for c in clients],
            data=lambda row: (ids[row], ids[row]),
        )
