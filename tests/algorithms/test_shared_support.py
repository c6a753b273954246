"""One support for everybody: uploads add up as they are, and are of the round they belong to."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from assembled import assemble, intercept
from torch import nn

from efl import ErrorFeedback, FedAvg, Privacy, SharedSupport, chain, train
from efl.algorithms import Clients, create, run_round
from efl.algorithms.fitting import fit
from efl.algorithms.pipeline import initial_state
from efl.algorithms.state import UPDATE
from efl.models import FlatModel
from efl.wire import Context, OnSupport, TrainReply, encode

HALF = chain(FedAvg(), codec=SharedSupport(0.5))


def test_the_sum_of_uploads_is_the_upload_of_the_sum(tiny):
    clients = Clients.of(tiny, FlatModel(nn.Sequential(nn.Linear(4, 3))), batch_size=5)
    played = run_round(HALF, initial_state(HALF, torch.zeros(15)), clients, clients.settings)
    positions = {tuple(update.delta.positions.tolist()) for update in played.updates}
    assert len(positions) == 1
    assert len(*positions) == 8
    total = np.sum([update.delta.values for update in played.updates], axis=0)
    assert np.allclose(total, played.work.displacement.sum(0).numpy()[list(*positions)], atol=1e-6)
    later = run_round(HALF, played.server, clients, replace(clients.settings, round=1))
    assert tuple(later.updates[0].delta.positions.tolist()) not in positions


def test_only_values_travel():
    sent = OnSupport(10_000, 99, np.ones(500, np.float32))
    assert len(encode(sent, Context.flat(10_000))) <= 4 * 500 + 10


@pytest.mark.parametrize("forged", [{"draw": 7}, {"values": np.ones(3, np.float32)}], ids=["round", "length"])
def test_another_support_is_rejected(digits, forged):
    coordinator, _ = assemble(digits, HALF, rounds=2, cohort=3, local_steps=1)
    first = []

    def change(requests, replies):
        client = min(replies.blobs)
        first.append(client)
        reply = TrainReply.from_bytes(replies.blobs[client], coordinator.message_limits)
        update = OnSupport(coordinator.model.n, 0, np.ones(round(coordinator.model.n / 2), np.float32))
        parts = {UPDATE: encode(replace(update, **forged), coordinator.plain)}
        replies.blobs[client] = replace(reply, parts=parts).to_bytes()
        return replies

    intercept(coordinator.transport, change)
    record = coordinator.run_round(0)
    assert "another round's update" in record.rejected[first[0]]
    assert len(record.aggregated) == 2


def test_it_goes_by_name_around_residuals_and_with_privacy(digits):
    table = {"name": "error_feedback", "codec": {"name": "shared_support", "density": 0.2}}
    assert create("fedavg", codec=table).codec == ErrorFeedback(SharedSupport(0.2))
    private = chain(FedAvg(), Privacy(noise_multiplier=1.0), codec=SharedSupport(0.2))
    assert fit(private, 20, 5).codec == SharedSupport(0.2)
    settings = {"rounds": 3, "cohort": 5, "local_steps": 2, "evaluate_own_every": "never"}
    up, whole = (train(digits, algorithm=one, **settings).summary["bytes_up"] for one in (HALF, FedAvg()))
    assert up < 0.52 * whole
