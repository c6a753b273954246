"""Rounds: what comes back is checked, and in which order clients train makes no difference."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from assembled import assemble, assembled, intercept
from torch import nn

from efl import EFL, FedAvg, Fleet, train
from efl.config import parse
from efl.errors import DivergedError
from efl.runs.setup import build
from efl.server.aggregation import mean_loss
from efl.server.client_table import ClientTable
from efl.server.loss_limit import LossLimit
from efl.server.replies import ValidReply
from efl.wire import Message


@pytest.mark.parametrize("algorithm", [EFL(density_up=0.05, density_down=0.05), FedAvg()])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_the_order_and_company_in_which_clients_run_do_not_matter(digits, algorithm, model):
    def weights(shuffle):
        experiment = parse({"federation": {"clients": 20}, "model": {"name": model}, "training": {"local_steps": 5}})
        coordinator, host = assembled(build(experiment, digits, None, algorithm, Fleet(stragglers=0.5)))
        train = host.train
        rng = np.random.default_rng(0)

        def one_by_one(requests, steps):
            replies = {}
            for client in rng.permutation(list(requests)).tolist():
                replies |= train({client: requests[client]}, steps)
            return replies

        if shuffle:
            host.train = one_by_one
        for round_ in range(6):
            coordinator.run_round(round_)
        return coordinator.server.w

    assert torch.equal(weights(shuffle=False), weights(shuffle=True))


def test_a_damaged_reply_is_rejected_and_the_round_goes_on(digits):
    coordinator, _ = assemble(digits, fleet=Fleet(stragglers=0.0, inactive=0.0), cohort=5, local_steps=2)

    def noisy(requests, replies):
        blobs = dict(replies.blobs)
        victim = min(blobs)
        blobs[victim] = blobs[victim][:-10] + b"0123456789"
        return replace(replies, blobs=blobs)

    intercept(coordinator.transport, noisy)
    record = coordinator.run_round(0)
    assert len(record.aggregated) == 4
    assert "checksum" in next(iter(record.rejected.values()))


def test_replies_of_clients_that_were_not_sampled_and_to_other_rounds_are_rejected(digits):
    coordinator, _ = assemble(digits, fleet=Fleet(stragglers=0.0, inactive=0.0), cohort=5, local_steps=2)
    kept = {}

    def replaying(requests, replies):
        blobs = {**replies.blobs, **kept}
        kept.update(replies.blobs)
        return replace(replies, blobs=blobs)

    intercept(coordinator.transport, replaying)
    coordinator.run_round(0)
    record = coordinator.run_round(1)
    assert record.rejected
    assert set(record.aggregated).isdisjoint(record.rejected)


def test_a_runaway_loss_is_divergence(digits):
    table = ClientTable.of(digits.sizes)
    assert mean_loss({0: ValidReply(1, 5.0, {}, False)}, table, 3) == 5.0
    with pytest.raises(DivergedError, match="training loss"):
        mean_loss({0: ValidReply(1, 1e9, {}, False)}, table, 3)


def test_losses_in_units_of_the_targets_are_measured_by_those_of_the_first_round():
    limit = LossLimit(in_nats=False)
    assert limit.beyond_others({0: 5e4, 1: 7e4, 2: 1e300, 3: -1e300}) == [2, 3]
    assert limit.beyond_others({0: 1e-3, 1: 9e3}) == []
    assert limit.most == math.inf
    limit.note([5e4, 7e4])
    limit.note([1e9])  # the first round decides
    assert limit.most == 7e7
    assert limit.beyond_others({0: 5e4, 1: 1e300}) == []  # beyond the limit anyway
    assert LossLimit(first=1e9).most == 1e4


def test_response_rates_are_one_where_everybody_replied_and_learn_otherwise():
    table = ClientTable.of(np.array([1, 1, 1]))
    assert (table.response_rates() == 1.0).all()
    table.requests[:], table.replies[:] = 50, 50
    assert (table.response_rates() == 1.0).all()
    table.requests[:], table.replies[:] = 1000, [1000, 500, 100]
    assert np.allclose(table.response_rates(), [1.0, 0.5, 0.1], atol=0.01)


def test_who_is_first_heard_of_late_counts_ten_times_at_most():
    table = ClientTable.of(np.ones(3, dtype=np.int64))
    table.requests[:], table.replies[:] = 300, [300, 30, 1]
    assert np.allclose(table.response_rates(), [1.0, 0.1, 0.1], atol=0.01)
    table.rounds[:], table.available[:] = 300, [300, 150, 1]
    assert np.allclose(table.availability(), [1.0, 0.5, 0.1], atol=0.01)


@pytest.mark.parametrize("selection", ["uniform", "available"])
def test_phones_that_show_up_after_many_rounds_do_not_undo_training(selection):
    fleet = Fleet(trace="phones", selection=selection)
    history = train("digits", algorithm="efl", fleet=fleet, rounds=290, evaluate_every=10).history
    late = [record["accuracy"] for record in history[190:] if "accuracy" in record]
    assert len(late) == 10
    assert min(late) > 0.8  # 0.3 and 0.1 where such a phone counts hundreds of times


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Counting(nn.Module):
    """Replaces a buffer instead of changing it in place, and has a parameter it does not use."""

    def __init__(self):
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 3), nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + 1
        return self.layer(x)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(Residual(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3)),
        nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3), nn.Flatten(), nn.Linear(6, 3)),
        Counting(),
    ],
)
def test_unusual_modules_train_the_same_in_any_order(tiny, module):
    def weights(reverse):
        experiment = parse({"federation": {"clients": 6}, "training": {"cohort": 6, "local_steps": 3}})
        coordinator, host = assembled(build(experiment, tiny, module, EFL(density_up=0.5, density_down=0.5), None))
        train = host.train
        if reverse:
            host.train = lambda requests, steps: {
                k: v for c in sorted(requests, reverse=True) for k, v in train({c: requests[c]}, steps).items()
            }
        for round_ in range(4):
            coordinator.run_round(round_)
        return torch.cat([coordinator.server.w, coordinator.buffers])

    first = weights(reverse=False)
    assert torch.equal(first, weights(reverse=True))
    assert torch.isfinite(first).all()
    if isinstance(module, Counting):
        assert first[-1] <= 12  # three steps a round at most, averaged: not one count for all clients


def test_a_reply_with_the_wrong_parts_is_rejected(digits):
    coordinator, _ = assemble(digits, fleet=Fleet(stragglers=0.0, inactive=0.0), cohort=5, local_steps=2)

    def wrong(requests, replies):
        blobs = dict(replies.blobs)
        victim = Message.from_bytes(blobs[min(blobs)], "reply")
        blobs[min(blobs)] = Message("reply", victim.header, {"update": victim.parts["field"]}).to_bytes()
        other = Message.from_bytes(blobs[max(blobs)], "reply")
        swapped = {"update": other.parts["field"], "field": other.parts["update"]}
        blobs[max(blobs)] = Message("reply", other.header, swapped).to_bytes()
        return replace(replies, blobs=blobs)

    intercept(coordinator.transport, wrong)
    record = coordinator.run_round(0)
    assert len(record.aggregated) == 3
    assert sorted(reason.split(" sent ")[1][:5] for reason in record.rejected.values()) == ["Field", "['upd"]


def test_lost_replies_that_are_resent_do_not_count_as_silence(digits):
    """Otherwise the same loss would be made up for twice: by the client's residual, and by its weight."""

    def rates(echo):
        algorithm = EFL(density_up=0.05, density_down=0.05, echo=echo)
        fleet = Fleet(stragglers=0.0, inactive=0.0, lost=0.4)
        coordinator, _ = assemble(digits, algorithm, fleet, cohort=20, local_steps=1)
        for round_ in range(60):
            coordinator.run_round(round_)
        return coordinator.table.response_rates().mean()

    assert rates(echo=True) > 0.8
    assert 0.55 < rates(echo=False) < 0.65
