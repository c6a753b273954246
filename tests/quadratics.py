"""Algorithms on quadratics, f_k(w) = ½ Σ a_k (w − b_k)², with every number in sight.

`Quadratics` stands in for a network and its data; a client's mini-batch is its number. `Simulation` plays rounds by
`run_round`: every client takes part in every round if not absent.
"""

from types import SimpleNamespace

import torch

from efl.algorithms.base import RoundSettings
from efl.algorithms.pipeline import initial_state
from efl.algorithms.run_round import Clients, run_round
from efl.layout import Layout
from efl.rng import stream
from efl.training.backends.rows import Rows
from efl.training.local_work import CohortData, LocalWork
from efl.training.optimisers import PLAIN_SGD


class Quadratics:
    """Clients with curvatures a_k and minima b_k, (N, n) each."""

    def __init__(self, a, b):
        self.a, self.b = torch.tensor(a), torch.tensor(b)
        self.clients, self.n = self.a.shape

    def losses(self, w):
        """f_k at w (n,), or at a model for each client (N, n)."""
        return (self.a * (w - self.b).square()).sum(1) / 2

    @property
    def optimum(self):
        """Of the mean of f_k."""
        return (self.a * self.b).sum(0) / self.a.sum(0)

    def work(self, assignments, start, settings, state, shared):
        ids = torch.tensor([one.client for one in assignments])[:, None]
        data = CohortData(
            lambda step, active: (ids[:active], ids[:active]),
            lambda limit: (ids, ids, torch.ones(len(ids), 1), ids[:, 0].tolist()),
            lambda row: (ids[row], ids[row]),
            lambda purpose: [stream(0, purpose, settings.round, one.client) for one in assignments],
        )
        return LocalWork(QuadraticRows(self, start, len(ids)), start, settings, assignments, state, shared, data)


class QuadraticRows(Rows):
    def __init__(self, problem, w, count):
        self.problem = problem
        model = SimpleNamespace(device=torch.device("cpu"), buffers=torch.zeros(0), n=problem.n, whole=lambda w: w)
        super().__init__(model, w, count)

    def at(self, w, count):
        return QuadraticRows(self.problem, w, count)

    def gradient(self, active, x, y):
        a, b = (matrix[x[:active, 0]] for matrix in (self.problem.a, self.problem.b))
        self.G[:active] = a * (self.W[:active] - b)
        return (a * (self.W[:active] - b).square()).sum(1) / 2

    def squared_gradients(self, x, y, weights):
        return self.problem.a[x[:, 0]]  # the Fisher diagonal needs a network; for a quadratic it is the curvature

    def outputs(self, x, weights):
        raise NotImplementedError


class Simulation:
    def __init__(self, algorithm, problem, eta, local_steps, optimiser=PLAIN_SGD):
        self.algorithm, self.problem, self.eta, self.local_steps = algorithm, problem, eta, local_steps
        self.optimiser = optimiser
        self.server = initial_state(algorithm, torch.zeros(problem.n))
        self.clients = Clients(problem, [1] * problem.clients)
        self.rounds = 0
        self.w_before = None
        self.models = {}  # client → where its local work ended
        self.own = {}  # client → the model it uses
        self.sent = {}  # client → part → values

    @property
    def w(self):
        return self.algorithm.evaluated_model(self.server).tolist()

    def state(self, name):
        states = self.clients.states
        return [states[client].vectors[name].tolist() for client in sorted(states)]

    def run(self, rounds=1, steps=None, lost=(), absent=()):
        """Rounds in which client k does ``steps[k]`` steps (all of them by default) and some replies are lost."""
        able = [self.local_steps] * self.problem.clients if steps is None else steps
        able = {client: done for client, done in enumerate(able) if client not in absent}
        for _ in range(rounds):
            self._round(able, set(lost))
        return self

    def _round(self, able, lost):
        self.w_before = self.w
        layout = Layout.flat(self.problem.n)
        settings = RoundSettings(
            self.rounds, self.eta, self.local_steps, 1, layout, clients=1000, optimiser=self.optimiser
        )
        played = run_round(self.algorithm, self.server, self.clients, settings, steps=able, lost=lost)
        self.server, self.clients = played.server, played.clients
        for row, client in enumerate(played.participants):
            self.models[client] = played.work.W[row].tolist()
            self.own[client] = played.work.personalised_models[row].clone()
        for update in played.updates:
            values = {name: part.values.tolist() for name, part in update.parts.items() if hasattr(part, "values")}
            self.sent[update.client] = values
        self.rounds += 1
