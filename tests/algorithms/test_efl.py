"""EFL as a whole: its identities with FedAvg and SGD, its accounts, its freedom from bias."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cohorts import Cohort
from fleets import IRREGULAR
from torch import nn

from efl import EFL, FedAvg, Federation, FedProx, Fleet, UserError, train
from efl.algorithms import create
from efl.algorithms.base import RoundSettings, ServerState, Update
from efl.algorithms.components.elastic import ElasticField, completion_scale, elastic_step
from efl.algorithms.compression.error_feedback import ErrorFeedback
from efl.algorithms.pipeline import aggregate, initial_state
from efl.algorithms.transforms.caution import Caution
from efl.models import Task, build
from efl.models.vectors import flatten
from efl.rng import Purpose, stream, torch_seed
from efl.server.client_table import ClientTable
from efl.server.sampling import SAMPLERS
from efl.training.batches import batch_indices
from efl.wire import Dense, Field, Layout

COMPLETE = Fleet(stragglers=0.0, inactive=0.0)
UNCOMPRESSED = {"density_up": 1.0, "density_down": 1.0}


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_without_elasticity_compression_and_stragglers_efl_is_fedavg_bit_for_bit(digits, model):
    settings = {"rounds": 3, "cohort": len(digits), "local_steps": 6, "evaluate_own_every": "never"}
    efl = train(digits, model, EFL(elasticity=0.0, **UNCOMPRESSED), COMPLETE, **settings)
    fedavg = train(digits, model, FedAvg(), COMPLETE, **settings)
    assert efl.summary["model_sha256"] == fedavg.summary["model_sha256"]


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_with_one_client_and_one_step_it_is_sgd_bit_for_bit(digits, name):
    samples = np.concatenate([digits.train[0], digits.train[1]])
    federation = Federation(digits.x, digits.y, [samples], [digits.test[0]], 10)
    algorithm = EFL(elasticity=0.0, **UNCOMPRESSED)
    result = train(federation, name, algorithm, COMPLETE, rounds=30, cohort=1, local_steps=1, decay=0.0)

    module = build(name, Task((1, 8, 8), 10), torch_seed(0, Purpose.MODEL))
    module.to(memory_format=torch.channels_last)  # as convolutions are computed here
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for round_ in range(30):
        chosen = torch.from_numpy(batch_indices(samples, 1, 20, stream(0, Purpose.BATCHES, round_, 0))[0])
        optimiser.zero_grad()
        F.cross_entropy(module(digits.x[chosen]), digits.y[chosen]).backward()
        optimiser.step()
    for ours, plain in zip(result.model.parameters(), module.parameters(), strict=True):
        assert torch.equal(ours, plain)


class Books:
    """What one run produced, sent and kept, by client and at the server."""

    def __init__(self):
        self.fresh, self.left, self.sent, self.arrived = {}, {}, {}, {}
        self.last, self.heard = {}, {}  # client → the round of its last upload, and of the last that arrived
        self.came, self.went, self.kept = 0.0, 0.0, 0.0


BOOKS = Books()


def dense(payload, n):
    return torch.from_numpy(payload.onto(np.zeros(n, np.float32))).double()


class AuditedFeedback(ErrorFeedback):
    """Error feedback that keeps books on both sides."""

    def encode_up(self, work, on_sent=None):
        before = self._residual(work).clone()  # what was lost has been taken back just now
        work.assignments = [replace(one, undelivered=None) for one in work.assignments]
        sent = super().encode_up(work, on_sent)
        for row, (one, payload) in enumerate(zip(work.assignments, sent, strict=True)):
            left = work.state["residual"][row].double()
            new = dense(payload, work.model.n) + left - before[row].double()
            if work.steps[row] == work.settings.local_steps:
                assert torch.allclose(new.float(), work.W[row] - work.start, atol=1e-6)
            BOOKS.fresh[one.client] = BOOKS.fresh.get(one.client, 0.0) + new
            BOOKS.left[one.client], BOOKS.sent[one.client] = left, dense(payload, work.model.n)
            BOOKS.last[one.client] = work.settings.round
        return sent

    def encode_down(self, aggregate, server, settings):
        payload, after = super().encode_down(aggregate, server, settings)
        BOOKS.came = BOOKS.came + aggregate.delta.double()
        BOOKS.went = BOOKS.went + dense(payload, len(server.w))
        BOOKS.kept = after.tensors["residual"].double()
        return payload, after


class Audited(EFL):
    """EFL that writes down what arrives."""

    @property
    def default_codec(self):
        return AuditedFeedback(super().default_codec.codec, self.echo)

    def weights(self, updates, settings):
        for update in updates:
            value = dense(update.delta, settings.layout.n)
            BOOKS.arrived[update.client] = BOOKS.arrived.get(update.client, 0.0) + value
            BOOKS.heard[update.client] = settings.round
        return super().weights(updates, settings)


@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_sent_and_residual_are_what_was_produced_on_both_sides_over_100_rounds(digits, lost):
    """Also when replies are lost: what never arrived goes back into the residual."""
    BOOKS.__init__()
    fleet = Fleet(stragglers=0.5, inactive=0.1, lost=lost)
    first = build("mlp", Task((1, 8, 8), 10), torch_seed(0, Purpose.MODEL))
    algorithm = Audited(density_up=0.02, density_down=0.02)
    result = train(digits, first, algorithm, fleet, rounds=100, local_steps=5, cohort=10)
    assert len(BOOKS.fresh) == len(digits)
    assert (lost > 0) == (BOOKS.last != BOOKS.heard)
    for client, total in BOOKS.fresh.items():
        left = BOOKS.left[client]
        if BOOKS.last[client] != BOOKS.heard.get(client):
            left = left + BOOKS.sent[client]
        assert torch.allclose(BOOKS.arrived.get(client, 0.0) + left, total, atol=2e-5)
    assert torch.allclose(BOOKS.went + BOOKS.kept, BOOKS.came, atol=2e-5)
    # The server applied what it broadcast, no more and no less.
    before, after = (flatten(module.parameters()).double() for module in (first, result.model))
    assert torch.allclose(before + BOOKS.went, after, atol=2e-5)


def settings_for(n, local_steps=20):
    return RoundSettings(0, 0.1, local_steps, 10, Layout.flat(n))


@pytest.mark.parametrize("selection", ["uniform", "share"])
@pytest.mark.parametrize("elasticity", [0.0, 2.0])
def test_the_aggregate_is_unbiased(selection, elasticity):
    """Monte Carlo over cohorts, stragglers and unequal answer rates, against full participation.

    Clients have constant gradients, so that what E steps come to is known. The answer rates are observed by the
    table in rounds before those that count.
    """
    clients, n, local_steps, cohort = 10, 3, 20, 4
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(clients, n, generator=generator)
    sizes = np.array([10, 20, 30, 40, 50, 60, 70, 80, 90, 300])
    fleet = Fleet(stragglers=0.6, inactive=tuple(np.linspace(0.0, 0.6, clients)), selection=selection)
    pull = ElasticField(None, torch.tensor([0.0, 0.5, 4.0]), torch.tensor([0.3, -0.2, 0.1])) if elasticity else None
    step, start = elastic_step(pull, 0.1, elasticity, "implicit"), torch.zeros(n)
    moved = torch.zeros(clients, local_steps + 1, n)
    for client in range(clients):
        w = start.clone()[None]
        for s in range(local_steps):
            step.take(w, gradients[client : client + 1], 0.1)
            moved[client, s + 1] = w[0] - start
    scale = completion_scale(pull, 0.1, elasticity, torch.arange(1, local_steps + 1), local_steps, n)
    table = ClientTable.of(sizes)
    expected = torch.from_numpy(table.shares).float() @ moved[:, -1]
    algorithm = EFL(elasticity=0.0, **UNCOMPRESSED)  # the clients have been elastic already

    def one_round(round_):
        drawn_by = stream(0, Purpose.SELECTION, round_)
        selected = SAMPLERS[fleet.selection].sample(table, np.ones(len(sizes), dtype=bool), cohort, drawn_by)
        behaviour = fleet.behave(0, round_, selected.clients, local_steps)
        rates = table.response_rates()
        updates = [
            Update(
                int(k), int(sizes[k]), float(table.shares[k]), float(p), float(rates[k]), int(s),
                {"update": Dense((start + scale[s - 1] * moved[k, s]).numpy())},
            )
            for k, p, s in zip(selected.clients, selected.probability, behaviour.steps, strict=True)
            if s > 0
        ]  # fmt: skip
        table.requests[selected.clients] += 1
        table.replies[[c.client for c in updates]] += 1
        _, payload = aggregate(algorithm, ServerState(start), updates, settings_for(n))
        return torch.from_numpy(payload.onto(start.numpy())) - start if payload else torch.zeros(n)

    for round_ in range(2000):
        one_round(round_)
    totals = torch.stack([one_round(round_) for round_ in range(2000, 5000)]).double()
    error = (totals.mean(0) - expected).abs()
    standard_error = totals.std(0) / len(totals) ** 0.5
    assert (error < 3 * standard_error).all(), (error / standard_error).tolist()
    # The test can tell: weights that ignore how often clients answer are far off.
    algorithm = EFL(elasticity=0.0, answer_rates=False, **UNCOMPRESSED)
    naive = torch.stack([one_round(round_) for round_ in range(2000, 3500)]).double()
    assert ((naive.mean(0) - expected).abs() > 5 * naive.std(0) / len(naive) ** 0.5).any()


def update(client, size, share, update, steps=20, asked=0.5, answers=1.0):
    return Update(client, size, share, asked, answers, steps, {"update": Dense(np.float32(update))})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.4 / 0.5, 0.1 / (0.5 * 0.5)]),
        ({"answer_rates": False}, [0.8, 0.2]),
        ({"participation": "share"}, [0.4, 0.1]),
        ({"participation": "self-normalised"}, [0.8 / 1.2, 0.4 / 1.2]),
        ({"weighting": "A"}, [0.8 / 1.2, 0.4 / 1.2]),
        ({"memory": "off", "caution": 0.0}, [0.8 / 1.2, 0.4 / 1.2]),
        ({"memory": "off"}, [0.8 / 0.96, 0.16 / 0.96]),  # 5 of 20 steps: β = 2·5/(5 + 20)
        ({"memory": "off", "participation": "unbiased"}, [0.8, 0.4]),
        ({"density_up": 0.1}, [0.8, 0.4]),
        ({"weighting": "B", "scale_at": "server", "density_up": 0.1}, [0.8, 0.4]),
        ({"weighting": "C", "scale_at": "server", "density_up": 0.1}, [0.8, 0.4 * 4]),
        ({"weighting": "C", "scale_at": "server", "density_up": 0.1, "weight_cap": 3.0}, [0.8, 0.4 * 3]),
        ({"weighting": "C"}, [0.8, 0.4]),
    ],
)
def test_weights_by_hand(settings, expected):
    updates = [update(0, 40, 0.4, [0.0]), update(1, 10, 0.1, [0.0], steps=5, answers=0.5)]
    assert np.allclose(EFL(**settings).weights(updates, replace(settings_for(1), clients=50)), expected)


def test_weights_where_clients_are_too_unequal_to_be_remembered():
    """They sum to 1, and 5 of 20 steps count β = 0.4; what is asked for is left alone."""
    updates = [update(0, 40, 0.4, [0.0]), update(1, 10, 0.1, [0.0], steps=5, answers=0.5)]
    settings = replace(settings_for(1), clients=0)
    assert np.allclose(EFL().weights(updates, settings), [0.8 / 0.96, 0.16 / 0.96])
    assert np.allclose(EFL(participation="unbiased").weights(updates, settings), [0.8, 0.4])
    assert np.allclose(EFL(density_up=0.1).weights(updates, settings), [0.8, 0.4])


def test_rounds_in_which_less_is_done_than_one_client_does_count_less():
    """Without memory: 5 of 20 steps alone count β = 0.4, 5 and 10 together β(15) = 6/7, 10 and 10 in full."""
    settings = replace(settings_for(1), clients=0)

    def weights(*steps, **how):
        updates = [update(number, 10, 0.5, [0.0], steps=done) for number, done in enumerate(steps)]
        return EFL(**how).weights(updates, settings)

    assert weights(5) == pytest.approx([0.4])
    assert weights(5, 10) == pytest.approx([0.4 / (0.4 + 2 / 3) * 6 / 7, 2 / 3 / (0.4 + 2 / 3) * 6 / 7])
    assert weights(10, 10) == pytest.approx([0.5, 0.5])
    assert weights(5, caution=0.0) == [1.0]


@pytest.mark.parametrize(("clients", "expected"), [(0, 1.0), (50, 0.5)])
def test_caution_is_in_the_weights_or_at_the_client(clients, expected):
    """A client that did 2 of 6 steps counts 2·2/(2 + 6) of itself, unless its weight does."""
    (caution,) = (one for one in EFL().transforms if isinstance(one, Caution))
    cohort = Cohort(steps=(6, 2, 1, 1))
    cohort.settings = replace(cohort.settings, clients=clients)
    work = cohort.work("eager", clients=[0, 1])
    assert caution.on_client(torch.ones(2, 1), work).tolist() == [[1.0], [expected]]


def test_a_round_without_answers_changes_nothing():
    for algorithm in (EFL(), FedAvg(), FedProx()):
        server = initial_state(algorithm, torch.randn(5))
        after, step = aggregate(algorithm, server, [], settings_for(5))
        assert step is None
        assert after is server


def test_two_clients_two_parameters_by_hand():
    """Δ^G = 0.6·(1, −2) + 0.4·(3, 0.5) = (1.8, −1); whole-vector ST with k = 1 sends (1.8, 0) and keeps (0, −1)."""
    algorithm = EFL(elasticity=0.0, density_up=1.0, density_down=0.5, scope="whole")
    server = initial_state(algorithm, torch.zeros(2))
    both = [update(0, 6, 0.6, [1.0, -2.0], asked=1.0), update(1, 4, 0.4, [3.0, 0.5], asked=1.0)]
    server, step = aggregate(algorithm, server, both, settings_for(2))
    assert np.allclose(step.onto(np.zeros(2, np.float32)), [1.8, 0.0])
    assert torch.allclose(server.tensors["residual"], torch.tensor([0.0, -1.0]))
    # Next round from w = (0, 0) again: (0, −1) + (1.8, −1) = (1.8, −2); now the second goes.
    server = replace(server, w=torch.zeros(2))
    server, step = aggregate(algorithm, server, both, settings_for(2))
    assert np.allclose(step.onto(np.zeros(2, np.float32)), [0.0, -2.0])
    assert torch.allclose(server.tensors["residual"], torch.tensor([1.8, 0.0]))


def test_in_the_papers_form_the_server_applies_the_residual_twice():
    algorithm = create("efl:paper", {"elasticity": 0.0, "density_down": 0.5, "density_up": 1.0})
    server = initial_state(algorithm, torch.zeros(2))
    both = [update(0, 10, 1.0, [2.0, -1.0], asked=1.0)]
    for _ in range(2):
        server, _ = aggregate(algorithm, replace(server, w=torch.zeros(2)), both, settings_for(2))
    # First Δ^G = (2, −1), residual (0, −1); then Δ^G = (2, −2): (4, −3) though the clients made (4, −2).
    assert torch.allclose(algorithm.server_model(server), torch.tensor([4.0, -3.0]))
    assert torch.equal(algorithm.evaluated_model(server), server.w)


def test_the_field_sums_what_clients_sent():
    algorithm = EFL(elasticity=1.0, field="dense")
    server = initial_state(algorithm, torch.tensor([1.0, 2.0]))
    fields = [
        Field(Layout.flat(2), None, np.float32([1, 0]), np.float32([0.5, 0])),
        Field(Layout.flat(2), None, np.float32([3, 2]), np.float32([-0.5, 1])),
    ]
    updates = [
        Update(k, 1, 0.5, 1.0, 1.0, 20, {"update": Dense(np.float32([1, 2])), "field": field})
        for k, field in enumerate(fields)
    ]
    server, _ = aggregate(algorithm, server, updates, settings_for(2))
    assert torch.equal(server.tensors["fisher"], torch.tensor([4.0, 2.0]))
    assert torch.equal(server.tensors["anchor"], torch.tensor([(1 * 1.5 + 3 * 0.5) / 4, 3.0]))
    sent = algorithm.broadcast(server, settings_for(2))["field"]
    assert np.allclose(sent.displacement, [3.0 / 4 - 1.0, 3.0 - 2.0])


OPTIONS = [
    {"fisher": "empirical"},
    {"fisher": "true"},
    {"scope": "whole"},
    {"weighting": "A"},
    {"weighting": "B"},
    {"weighting": "C"},
    {"step": "explicit", "elasticity": 0.01},
    {"participation": "self-normalised"},
    {"field": "dense"},
    {"scale_at": "server", "weighting": "C"},
    {"echo": False},
]


@pytest.mark.parametrize("settings", OPTIONS)
def test_every_option_learns(digits, settings):
    algorithm = EFL(**({"density_up": 0.1, "density_down": 0.1} | settings))
    result = train(digits, "linear", algorithm, IRREGULAR, rounds=40, cohort=10)
    assert not result.summary["diverged"]
    assert result.summary["bmta_global"] > 0.6


def test_the_field_travels_in_every_so_many_th_round(digits):
    result = train(digits, "linear", EFL(field_every=3), IRREGULAR, rounds=9, cohort=10)
    fields = [[record["bytes"][way].get("field", 0) > 0 for record in result.history] for way in ("up", "down")]
    assert fields[0] == [False, False, True] * 3
    assert fields[1] == [False, False, False, True, False, False, True, False, False]


def test_incomplete_clients_count_for_fedprox_and_not_for_fedavg(digits):
    fleet = Fleet(stragglers=1.0, inactive=0.0, straggler_steps="constant:3")
    untouched = train(digits, "linear", FedAvg(), fleet, rounds=2, cohort=5)
    assert untouched.summary["bytes_up"] == 0
    assert all(record["counted"] == [] for record in untouched.history)
    assert train(digits, "linear", FedProx(), fleet, rounds=2, cohort=5).summary["bytes_up"] > 0
    assert train(digits, "linear", FedProx(incomplete="drop"), fleet, rounds=2, cohort=5).summary["bytes_up"] == 0


def test_fedprox_pulls_to_the_servers_model(digits):
    free = train(digits, "linear", FedProx(proximity=0.0), COMPLETE, rounds=1, cohort=20)
    fedavg = train(digits, "linear", FedAvg(), COMPLETE, rounds=1, cohort=20)
    held = train(digits, "linear", FedProx(proximity=5.0), COMPLETE, rounds=1, cohort=20)
    assert free.summary["model_sha256"] == fedavg.summary["model_sha256"]
    norm = [sum(p.square().sum() for p in result.model.parameters()) for result in (free, held)]
    assert norm[1] < 0.5 * norm[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"elasticity": -1.0},
        {"density_up": 0.0},
        {"density_down": 1.5},
        {"weight_cap": 0.5},
        {"fisher": "guess"},
        {"weighting": "D"},
        {"scale_at": "server"},
        {"elasticity": float("nan")},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        EFL(**settings)


def test_float_buffers_are_averaged_and_travel(digits):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    result = train(digits, module, EFL(density_up=0.1, density_down=0.1), rounds=15, cohort=10)
    assert result.model[2].running_mean.abs().sum() > 0
    assert result.summary["bmta_global"] > 0.2
